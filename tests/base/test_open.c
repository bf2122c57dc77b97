/* Opening regular files only. Oracle: a link, a pipe, a folder or a device instead of a file is
 * refused with a message. The file that a link leads to does not change. A test that waits for a
 * pipe runs into its time limit. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/open.h"
#include "tests/test.h"

static char dir[] = "/tmp/sluice-open-XXXXXX";
static char file[64], other[64];

static void put(const char *path, const char *text)
{
  FILE *to = fopen(path, "w");
  assert_non_null(to);
  assert_true(fputs(text, to) >= 0);
  assert_int_equal(fclose(to), 0);
}

static void holds(const char *path, const char *text)
{
  char found[64] = "";
  FILE *from = fopen(path, "r");
  assert_non_null(from);
  found[fread(found, 1, sizeof found - 1, from)] = '\0';
  fclose(from);
  assert_string_equal(found, text);
}

static enum status open_as(enum open_as as, const char *path, const char *text)
{
  int fd = -1;
  const enum status status = open_regular(path, as, &fd);
  assert_true((fd >= 0) == (status == STATUS_OK));
  if (status)
    return status;
  if (text)
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  assert_int_equal(close(fd), 0);
  return STATUS_OK;
}

TEST(files_open_as_they_are_meant_to)
{
  assert_int_equal(open_as(OPEN_READ, file, NULL), STATUS_INPUT);
  assert_int_equal(open_as(OPEN_OWN, file, NULL), STATUS_IO);
  assert_int_equal(open_as(OPEN_UPDATE, file, NULL), STATUS_IO);
  must(open_as(OPEN_APPEND, file, "one"));
  must(open_as(OPEN_APPEND, file, "two"));
  holds(file, "onetwo");
  must(open_as(OPEN_UPDATE, file, "TWO"));
  holds(file, "TWOtwo");
  must(open_as(OPEN_READ, file, NULL));
  must(open_as(OPEN_OWN, file, NULL));
  must(open_as(OPEN_NEW, file, "new"));
  holds(file, "new");
}

/* In every mode but one that makes a new file. */
static void refused_as(const char *says)
{
  for (enum open_as as = OPEN_READ; as <= OPEN_APPEND; as++) {
    assert_int_equal(open_as(as, file, NULL), as <= OPEN_OWN ? STATUS_INPUT : STATUS_IO);
    if (as == OPEN_STREAM && strstr(says, "a pipe"))
      must_say("file is a pipe to which no program has written");
    else
      must_say(says);
  }
}

TEST(links_are_refused_where_sluice_writes)
{
  unlink(file);
  put(other, "kept");
  assert_int_equal(symlink(other, file), 0);
  for (enum open_as as = OPEN_OWN; as <= OPEN_APPEND; as++)
    must_fail(open_as(as, file, NULL), STATUS_IO, "file: it is a symbolic link");
  must(open_as(OPEN_READ, file, NULL));
  must(open_as(OPEN_NEW, file, "new")); /* replaces the link */
  holds(file, "new");
  holds(other, "kept");
}

TEST(pipes_are_not_waited_for)
{
  unlink(file);
  assert_int_equal(mkfifo(file, 0600), 0);
  refused_as("file is a pipe, and a regular file is expected");
  must(open_as(OPEN_NEW, file, "new"));
  holds(file, "new");
}

/* The pipe of a shell is waited for, even if its writer comes later. */
TEST(pipes_of_a_shell_are_read)
{
  int ends[2], fd = -1;
  char path[64], got[8] = "";
  assert_int_equal(pipe(ends), 0);
  snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
  assert_int_equal(open_as(OPEN_READ, path, NULL), STATUS_INPUT);
  must(open_regular(path, OPEN_STREAM, &fd));
  const pid_t writer = fork();
  if (writer == 0) {
    usleep(50000);
    _exit(write(ends[1], "deck", 4) != 4);
  }
  assert_int_equal(read(fd, got, sizeof got), 4);
  assert_string_equal(got, "deck");
  assert_int_equal(waitpid(writer, NULL, 0), writer);
  close(fd);
  close(ends[0]);
  close(ends[1]);
  must(open_as(OPEN_STREAM, "/dev/null", NULL));
}

TEST(sockets_are_no_files)
{
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  strcpy(address.sun_path, file);
  unlink(file);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  refused_as("file is a socket, and a regular file is expected");
  close(fd);
  unlink(file);
}

TEST(folders_and_devices_are_no_files)
{
  must_fail(open_as(OPEN_READ, dir, NULL), STATUS_INPUT, "is a folder; a file is expected");
  assert_int_equal(open_as(OPEN_NEW, dir, NULL), STATUS_IO);
  must_fail(open_as(OPEN_UPDATE, "/dev/null", NULL), STATUS_IO, "is a device");
}

/* A run folder may be a link to another disk. */
TEST(links_among_the_folders_are_followed)
{
  char link[64], inside[80];
  snprintf(link, sizeof link, "%s/link", dir);
  snprintf(inside, sizeof inside, "%s/link/file", dir);
  assert_int_equal(symlink(dir, link), 0);
  must(open_as(OPEN_NEW, inside, "through"));
  holds(file, "through");
  assert_int_equal(unlink(link), 0);
}

/* Groups share folders by their umask. */
TEST(the_mode_follows_the_umask)
{
  struct stat info;
  const mode_t before = umask(002);
  must(open_as(OPEN_NEW, file, ""));
  umask(before);
  assert_int_equal(stat(file, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0664);
}

int main(void)
{
  if (!mkdtemp(dir))
    return 1;
  snprintf(file, sizeof file, "%s/file", dir);
  snprintf(other, sizeof other, "%s/other", dir);
  const int failed = test_run(NULL, NULL);
  unlink(file);
  unlink(other);
  return rmdir(dir) != 0 ? 1 : failed;
}
