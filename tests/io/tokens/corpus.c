#include "corpus.h"

#include <dirent.h>
#include <ftw.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"

void corpus_put(const char *folder, const char *name, const void *content, size_t bytes)
{
  char *path = mem_printf("%s/%s", folder, name);
  assert_non_null(path);
  *strrchr(path, '/') = '\0';
  must(file_make_folders(path));
  path[strlen(path)] = '/';
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(content, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
  mem_free(path);
}

char *corpus_text(uint64_t seed, size_t bytes)
{
  static const char *const words[] = {"the",
                                      "gate",
                                      "water",
                                      "opens",
                                      "and",
                                      "of",
                                      "wheel",
                                      "stone",
                                      "M\xC3\xBChle",
                                      "\xE6\xB0\xB4",
                                      "it's",
                                      "42",
                                      "\xF0\x9F\x99\x82",
                                      "closes",
                                      "before",
                                      "after"};
  struct rng_key key = rng_key_make(seed, "test corpus");
  char *text = NULL;
  must(mem_alloc(MEM_META, bytes + 1, (void **)&text));
  size_t n = 0;
  for (uint64_t i = 0;; i++) {
    uint32_t draw[4];
    rng_block(key, 0, i, draw);
    const char *word = words[draw[0] % 16], *after = draw[1] % 400 == 0  ? ".\n\n"
                                                     : draw[1] % 12 == 0 ? "\n"
                                                                         : " ";
    if (n + strlen(word) + strlen(after) > bytes)
      break;
    n += (size_t)sprintf(text + n, "%s%s", word, after);
  }
  memset(text + n, '.', bytes - n);
  return text;
}

static FILE *open_json(const char *folder, const char *name)
{
  char *path = mem_printf("%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  mem_free(path);
  return file;
}

/* Returns the bytes written. */
static size_t put_document(FILE *file, uint64_t seed, uint64_t number)
{
  uint32_t draw[4];
  rng_block(rng_key_make(seed, "test documents"), 0, number, draw);
  char *text = corpus_text(seed * 1000 + number, 100 + draw[0] % 4000);
  int n = fprintf(file, "{\"id\": \"%d\", %s\"text\": \"", (int)number,
                  draw[1] % 4 ? "\"title\": \"Gate\", " : "");
  for (const char *c = text; *c; c++)
    n += *c == '\n' ? fprintf(file, "\\n") : fprintf(file, "%c", *c);
  n += fprintf(file, "\"}");
  mem_free(text);
  return (size_t)n;
}

void corpus_array(const char *folder, const char *name, uint64_t seed, size_t bytes)
{
  FILE *file = open_json(folder, name);
  size_t n = 0;
  fputc('[', file);
  for (uint64_t i = 0; n < bytes; i++) {
    if (i)
      fputs(", ", file);
    n += put_document(file, seed, i);
  }
  fputs("]\n", file);
  assert_int_equal(fclose(file), 0);
}

static void put_text(const char *folder, const char *name, uint64_t seed, size_t bytes)
{
  char *text = corpus_text(seed, bytes);
  corpus_put(folder, name, text, bytes);
  mem_free(text);
}

void corpus_make(const char *folder)
{
  put_text(folder, "a/large.txt", 1, 9 << 20);
  put_text(folder, "a/small.txt", 2, 900);
  put_text(folder, "a/b/medium.txt", 3, 700000);
  put_text(folder, "c/unknown.ending", 4, 300000);
  put_text(folder, "z.txt", 5, 1 << 20);
  corpus_put(folder, "empty.txt", "", 0);
  corpus_put(folder, "space.txt", " \n\n \n", 5);
  corpus_put(folder, ".hidden", "\xFF", 1);
  corpus_put(folder, ".folder/hidden.txt", "\xFF", 1);
  corpus_array(folder, "array.json", 6, 2 << 20);
  FILE *lines = open_json(folder, "lines.jsonl");
  for (uint64_t i = 0; i < 300; i++) {
    put_document(lines, 7, i);
    fputc('\n', lines);
  }
  fputs("{\"text\": \" \"}\n", lines);
  assert_int_equal(fclose(lines), 0);
}

static int by_name(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

char *folder_list(const char *folder)
{
  char *name[4096], *list = mem_strdup("");
  int n = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (const struct dirent *entry; (entry = readdir(dir));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      name[n++] = mem_strdup(entry->d_name);
  closedir(dir);
  qsort(name, (size_t)n, sizeof *name, by_name);
  for (int i = 0; i < n; i++) {
    char *longer = mem_printf("%s%s\n", list, name[i]);
    mem_free(list);
    mem_free(name[i]);
    list = longer;
  }
  return list;
}

void assert_same_folders(const char *a, const char *b)
{
  char *list_a = folder_list(a), *list_b = folder_list(b);
  assert_string_equal(list_a, list_b);
  for (const char *name = list_a; *name; name = strchr(name, '\n') + 1) {
    char *content[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
      char *path = mem_printf("%s/%.*s", i ? b : a, (int)strcspn(name, "\n"), name);
      must(file_read_all(path, (size_t)1 << 30, &content[i], &bytes[i]));
      mem_free(path);
    }
    if (bytes[0] != bytes[1] || memcmp(content[0], content[1], bytes[0]) != 0)
      fail_msg("%.*s differs between %s and %s", (int)strcspn(name, "\n"), name, a, b);
    mem_free(content[0]);
    mem_free(content[1]);
  }
  mem_free(list_a);
  mem_free(list_b);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
  (void)info, (void)kind, (void)where;
  return remove(path);
}

void folder_remove(const char *folder)
{
  nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
