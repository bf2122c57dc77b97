/* A socket per process, and round robin: answer k is the next one of process k % n. All sockets are
 * written and read together, so no record or answer is too large for their buffers. */
#include "io/tokens/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/progress.h"

enum {
  AHEAD = 8,              /* records per process that wait for their answers */
  AHEAD_BYTES = 64 << 20, /* of all these records */
  PIECE = 256 << 10,
  POLL_MS = 1000,
  CPU_SECONDS = 20 /* after which a process ends itself; see tools/chat.py */
};

/* Kinds of an answer, as in tools/chat.py. */
enum { KIND_TEXT = 1, KIND_ERROR = 4, KIND_FATAL = 8, KINDS = 16 };

struct worker {
  pid_t pid;
  int fd;
  struct text_buffer out, in; /* bytes to write, and bytes that were read */
  size_t written, taken;      /* of them */
};

struct chat {
  char *const *argv;
  const struct tokenizer *tokenizer;
  struct worker *worker;
  struct pollfd *poll;
  int workers, started;
  int64_t sent, received;
  struct text_buffer marks;
};

enum status chat_create(char *const *argv, int workers, const struct tokenizer *tokenizer,
                        struct chat **out)
{
  struct chat *chat = NULL;
  enum status status = mem_new(MEM_DATA, 1, &chat);
  if (status)
    return status;
  *chat = (struct chat){.argv = argv, .tokenizer = tokenizer, .workers = workers};
  status = mem_new(MEM_DATA, workers, &chat->worker) ?: mem_new(MEM_DATA, workers, &chat->poll);
  if (status)
    chat_destroy(chat);
  else
    *out = chat;
  return status;
}

void chat_destroy(struct chat *chat)
{
  if (!chat)
    return;
  for (int i = 0; i < chat->started; i++) {
    struct worker *worker = &chat->worker[i];
    if (worker->pid) {
      kill(worker->pid, SIGKILL);
      waitpid(worker->pid, NULL, 0);
    }
    close(worker->fd); /* nothing on it is needed */
    text_buffer_free(&worker->out);
    text_buffer_free(&worker->in);
  }
  mem_free(chat->worker);
  mem_free(chat->poll);
  text_buffer_free(&chat->marks);
  mem_free(chat);
}

/* ---- processes */

static enum status spawn(const struct chat *chat, int fd, pid_t *pid)
{
  posix_spawn_file_actions_t actions;
  int problem = posix_spawn_file_actions_init(&actions);
  if (problem)
    return status_set(STATUS_MEMORY, "no process can be prepared: %s", strerror(problem));
  problem = posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO)
                ?: posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO)
                ?: posix_spawnp(pid, chat->argv[0], &actions, NULL, chat->argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  return problem ? status_set(STATUS_UNSUPPORTED,
                              "conversations need %s, which cannot be started (%s): install Python "
                              "3.8 or later with Jinja2 (Debian and Ubuntu: apt install "
                              "python3-jinja2)",
                              chat->argv[0], strerror(problem))
                 : STATUS_OK;
}

static enum status frame(struct text_buffer *out, const char *data, size_t bytes)
{
  const int64_t length = (int64_t)bytes;
  text_buffer_append(out, (const char *)&length, sizeof length);
  return text_buffer_append(out, data, bytes);
}

enum status chat_quote(struct text_buffer *out, const char *text, size_t bytes)
{
  text_buffer_append(out, "\"", 1);
  for (size_t i = 0; i < bytes; i++)
    if (text[i] == '"' || text[i] == '\\' || (unsigned char)text[i] < ' ')
      text_buffer_print(out, "\\u%04x", text[i]);
    else
      text_buffer_append(out, text + i, 1);
  return text_buffer_append(out, "\"", 1);
}

/* {"special": {"ID": "TEXT"}} */
static enum status send_header(const struct chat *chat, struct worker *worker)
{
  struct text_buffer header = {0};
  const struct tokenizer *tokenizer = chat->tokenizer;
  text_buffer_print(&header, "{\"special\": {");
  for (int32_t id = 0, n = 0; id < tokenizer_vocab(tokenizer); id++) {
    size_t bytes;
    const char *text = tokenizer_text_of(tokenizer, id, &bytes);
    if (!tokenizer_is_special(tokenizer, id) || bytes == 0)
      continue;
    text_buffer_print(&header, "%s\"%d\": ", n++ ? ", " : "", id);
    chat_quote(&header, text, bytes);
  }
  text_buffer_print(&header, "}}");
  const enum status status = header.status ?: frame(&worker->out, header.data, header.bytes);
  text_buffer_free(&header);
  return status;
}

static enum status start(struct chat *chat)
{
  struct worker *worker = &chat->worker[chat->started];
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return status_set(STATUS_IO, "no socket can be made for a process: %s", strerror(errno));
  *worker = (struct worker){.fd = pair[0], .out.most = SIZE_MAX, .in.most = SIZE_MAX};
  chat->started++;
  const enum status status = spawn(chat, pair[1], &worker->pid);
  close(pair[1]);
  return status ?: send_header(chat, worker);
}

static enum status explain_death(struct worker *worker)
{
  int how = 0;
  waitpid(worker->pid, &how, 0);
  worker->pid = 0;
  if (WIFSIGNALED(how) && WTERMSIG(how) == SIGPROF)
    return status_set(STATUS_LIBRARY, "the chat template takes more than %d s of CPU time",
                      CPU_SECONDS);
  if (WIFSIGNALED(how))
    return status_set(STATUS_LIBRARY,
                      "the process that renders conversations was ended by signal "
                      "%d (%s)",
                      WTERMSIG(how), strsignal(WTERMSIG(how)));
  return status_set(STATUS_LIBRARY, "the process that renders conversations ended (exit status %d)",
                    WEXITSTATUS(how));
}

/* ---- records */

int64_t chat_slots(const struct chat *chat)
{
  return (int64_t)AHEAD * chat->workers;
}

bool chat_has_room(const struct chat *chat)
{
  size_t bytes = 0;
  for (int i = 0; i < chat->started; i++)
    bytes += chat->worker[i].out.bytes - chat->worker[i].written + chat->worker[i].in.bytes;
  return chat->sent - chat->received < chat_slots(chat) && bytes < AHEAD_BYTES;
}

enum status chat_send(struct chat *chat, const char *record, size_t bytes)
{
  const int number = (int)(chat->sent % chat->workers);
  const enum status status = number == chat->started ? start(chat) : STATUS_OK;
  if (!status)
    chat->sent++;
  return status ?: frame(&chat->worker[number].out, record, bytes);
}

static enum status write_some(struct worker *worker)
{
  const ssize_t n = send(worker->fd, worker->out.data + worker->written,
                         worker->out.bytes - worker->written, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
    return explain_death(worker);
  worker->written += n > 0 ? (size_t)n : 0;
  if (worker->written == worker->out.bytes) {
    text_buffer_clear(&worker->out);
    worker->written = 0;
  }
  return n >= 0 || errno == EAGAIN || errno == EINTR
             ? STATUS_OK
             : status_set(STATUS_IO, "a process takes no record: %s", strerror(errno));
}

static enum status read_some(struct worker *worker)
{
  char piece[PIECE];
  const ssize_t n = recv(worker->fd, piece, sizeof piece, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno == ECONNRESET))
    return explain_death(worker);
  if (n < 0)
    return errno == EAGAIN || errno == EINTR
               ? STATUS_OK
               : status_set(STATUS_IO, "a process gives no answer: %s", strerror(errno));
  if (worker->taken > 0) {
    worker->in.bytes -= worker->taken;
    memmove(worker->in.data, worker->in.data + worker->taken, worker->in.bytes);
    worker->taken = 0;
  }
  return text_buffer_append(&worker->in, piece, (size_t)n);
}

/* Waits until a process takes or gives bytes. */
static enum status exchange(struct chat *chat)
{
  for (int i = 0; i < chat->started; i++)
    chat->poll[i] =
        (struct pollfd){.fd = chat->worker[i].fd,
                        .events = (short)(POLLIN | (chat->worker[i].out.bytes > 0 ? POLLOUT : 0))};
  const int ready = poll(chat->poll, (nfds_t)chat->started, POLL_MS);
  progress_add(); /* the processes bound their time */
  enum status status =
      ready >= 0 || errno == EINTR
          ? STATUS_OK
          : status_set(STATUS_IO, "processes cannot be waited for: %s", strerror(errno));
  for (int i = 0; i < chat->started && ready > 0 && !status; i++) {
    if (chat->poll[i].revents & (POLLIN | POLLHUP | POLLERR))
      status = read_some(&chat->worker[i]);
    if (chat->poll[i].revents & POLLOUT && !status)
      status = write_some(&chat->worker[i]);
  }
  return status;
}

/* ---- answers: kind, spans, bytes of text, bytes of note, bytes of the first of two texts or 0;
 * spans of (bytes, flags); text; note */

enum { HEAD = 5 };

struct answer {
  int64_t head[HEAD];
  const char *spans, *text, *note;
};

static bool is_sane(const struct worker *worker)
{
  int64_t head[HEAD];
  if (worker->in.bytes - worker->taken < sizeof head)
    return true;
  memcpy(head, worker->in.data + worker->taken, sizeof head);
  return head[0] >= 0 && head[0] < KINDS && head[1] >= 0 && head[1] <= head[2] && head[2] >= 0 &&
         head[2] <= INT32_MAX && head[3] >= 0 && head[3] <= INT32_MAX && head[4] >= 0 &&
         head[4] <= head[2];
}

/* Whether the process has a whole answer. */
static bool find_answer(const struct worker *worker, struct answer *out, size_t *bytes)
{
  const size_t left = worker->in.bytes - worker->taken;
  if (left < sizeof out->head || !is_sane(worker))
    return false;
  const char *at = worker->in.data + worker->taken;
  memcpy(out->head, at, sizeof out->head);
  out->spans = at + sizeof out->head;
  out->text = out->spans + out->head[1] * 2 * (int64_t)sizeof(int64_t);
  out->note = out->text + out->head[2];
  *bytes = (size_t)(out->note + out->head[3] - at);
  return left >= *bytes;
}

static enum status spread_marks(struct chat *chat, const struct answer *answer)
{
  text_buffer_clear(&chat->marks);
  int64_t left = answer->head[2], span[2];
  for (int64_t i = 0; i < answer->head[1]; i++) {
    memcpy(span, answer->spans + i * (int64_t)sizeof span, sizeof span);
    if (span[0] < 0 || span[0] > left)
      break;
    left -= span[0];
    for (int64_t k = 0; k < span[0]; k++)
      text_buffer_append(&chat->marks, &(char){(char)span[1]}, 1);
  }
  if (left && !chat->marks.status)
    return status_set(STATUS_INTERNAL, "spans do not cover the text of a conversation");
  return chat->marks.status;
}

static enum status take(struct chat *chat, const struct answer *answer, struct chat_answer *out)
{
  const int64_t kind = answer->head[0];
  if (kind & (KIND_ERROR | KIND_FATAL))
    return status_set(kind & KIND_FATAL ? STATUS_UNSUPPORTED : STATUS_INPUT, "%.*s",
                      (int)answer->head[2], answer->text);
  const enum status status = spread_marks(chat, answer);
  if (status)
    return status;
  *out = (struct chat_answer){.text = answer->text,
                              .bytes = (size_t)answer->head[2],
                              .first = (size_t)answer->head[4],
                              .marks = (const unsigned char *)chat->marks.data,
                              .is_text = kind & KIND_TEXT};
  snprintf(out->note, sizeof out->note, "%.*s", (int)answer->head[3], answer->note);
  return STATUS_OK;
}

enum status chat_receive(struct chat *chat, struct chat_answer *out)
{
  struct worker *worker = &chat->worker[chat->received % chat->workers];
  struct answer answer;
  size_t bytes;
  while (!find_answer(worker, &answer, &bytes)) {
    if (!is_sane(worker))
      return status_set(STATUS_INTERNAL, "a process gives an answer that makes no sense");
    const enum status status = exchange(chat);
    if (status)
      return status;
  }
  worker->taken += bytes;
  chat->received++;
  return take(chat, &answer, out);
}
