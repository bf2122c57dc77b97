/* Kinds of files that a broken download or a wrong name leaves in a folder. */
#include "io/text/file_kind.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const char again[] = "download the file again, for example with hf download",
                  unpack[] = "unpack it first",
                  convert[] = "load it in PyTorch, and save the model with save_pretrained()",
                  lfs[] = "fetch the file with git lfs pull, or download it again";

/* Bytes at a fixed place. The first row that matches counts. */
static const struct kind {
  size_t at;
  const char *magic; /* of magic_bytes bytes, if it holds a NUL */
  const char *is, *cure;
  size_t magic_bytes;
} binary[] = {
    {257, "ustar", "a tar archive", unpack, 0},
    {0, "PK\3\4", "a zip archive, as PyTorch's .bin and .pt files are", convert, 0},
    {0, "\x80\2\x8A\n", "a file of PyTorch (pickle)", convert, 0},
    {0, "\x80\2}", "a file of PyTorch (pickle)", convert, 0},
    {0, "\x80\2c", "a file of PyTorch (pickle)", convert, 0},
    {0, "\x80\3", "a Python pickle", convert, 0},
    {0, "\x80\4", "a Python pickle", convert, 0},
    {0, "\x80\5", "a Python pickle", convert, 0},
    {0, "GGUF", "a GGUF file", "use the model's safetensors files", 0},
    {0, "\x89HDF\r\n", "an HDF5 file",
     "a checkpoint of Sluice is named by its path, without a folder around it", 0},
    {0, "\x93NUMPY", "a NumPy array", "save the model as safetensors", 0},
    {0, "\x1F\x8B", "a compressed file (gzip)", "unpack it with gunzip first", 0},
    {0, "\x28\xB5\x2F\xFD", "a compressed file (zstd)", "unpack it with unzstd first", 0},
    {0,
     "\xFD"
     "7zXZ",
     "a compressed file (xz)", "unpack it with unxz first", 0},
    {0, "BZh", "a compressed file (bzip2)", "unpack it with bunzip2 first", 0},
    {0, "7z\xBC\xAF", "a 7z archive", unpack, 0},
    {0, "Rar!", "a RAR archive", unpack, 0},
    {0, "%PDF", "a PDF", again, 0},
    {0, "\x89PNG", "an image (PNG)", again, 0},
    {0, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "a file of zeros, as an unfinished download leaves it",
     again, 16},
};

/* Beginnings of texts, after white space. Letters count in either case. */
static const struct kind texts[] = {
    {0, "version https://git-lfs", "a pointer of Git LFS", lfs, 0},
    {0, "version https://hawser", "a pointer of Git LFS", lfs, 0},
    {0, "# xet version", "a pointer of Xet", again, 0},
    {0, "/annex/objects/", "a pointer of git-annex", "fetch the file with git annex get", 0},
    {0, "<!doctype html", "a page of HTML", again, 0},
    {0, "<html", "a page of HTML", again, 0},
    {0, "<head", "a page of HTML", again, 0},
    {0, "<body", "a page of HTML", again, 0},
    {0, "<", "a text in XML or HTML", again, 0},
};

/* First keys of objects that servers send in place of a file. */
static const char *const errors[] = {"\"error", "\"message\"", "\"detail\""};

static bool matches(const struct kind *kind, const char *start, size_t bytes)
{
  const size_t n = kind->magic_bytes ? kind->magic_bytes : strlen(kind->magic);
  return bytes >= kind->at + n && !memcmp(start + kind->at, kind->magic, n);
}

static size_t skip_space(const char *start, size_t bytes, size_t at)
{
  while (at < bytes && isspace((unsigned char)start[at]))
    at++;
  return at;
}

static bool is_error(const char *text, size_t bytes)
{
  const size_t at = skip_space(text, bytes, 1);
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (bytes - at > strlen(errors[i]) && !memcmp(text + at, errors[i], strlen(errors[i])))
      return true;
  return false;
}

/* How many bytes of a text are shown. 0: these are no text. */
static int shown_bytes(const char *text, size_t bytes)
{
  enum { LEAST = 3, SHOWN = 60 };
  int n = bytes < SHOWN ? (int)bytes : SHOWN;
  for (int i = 0; i < n; i++)
    if (!isprint((unsigned char)text[i]) && !isspace((unsigned char)text[i]))
      return 0;
  while (n > 0 && isspace((unsigned char)text[n - 1]))
    n--;
  return n < LEAST ? 0 : n;
}

static enum status refuse(const char *path, const char *wanted, const char *is, const char *cure)
{
  return status_set(STATUS_INPUT, "%s is %s, not %s: %s", path, is, wanted, cure);
}

static enum status refuse_text(const char *path, const char *wanted, const char *text, size_t bytes)
{
  const int shown = shown_bytes(text, bytes);
  const bool json = !strcmp(wanted, "JSON");
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (bytes >= strlen(texts[i].magic) &&
        !strncasecmp(text, texts[i].magic, strlen(texts[i].magic)))
      return refuse(path, wanted, texts[i].is, texts[i].cure);
  if (shown == 0 || (json && *text != '{' && !isalpha((unsigned char)*text)))
    return STATUS_OK;
  if (*text == '{' && is_error(text, bytes))
    return status_set(STATUS_INPUT, "%s is the answer of a server, %.*s: %s", path, shown, text,
                      again);
  if (*text == '{' && json)
    return STATUS_OK;
  return status_set(STATUS_INPUT, "%s is the text \"%.*s\", not %s: %s", path, shown, text, wanted,
                    again);
}

enum status file_kind_refuse(const char *path, const char *wanted, const char *start, size_t bytes)
{
  const size_t text =
      skip_space(start, bytes, bytes >= 3 && !memcmp(start, "\xEF\xBB\xBF", 3) ? 3 : 0);
  if (bytes == 0)
    return status_set(STATUS_INPUT, "%s is empty: its download did not finish; %s", path, again);
  for (size_t i = 0; i < sizeof binary / sizeof *binary; i++)
    if (matches(&binary[i], start, bytes))
      return refuse(path, wanted, binary[i].is, binary[i].cure);
  return text < bytes ? refuse_text(path, wanted, start + text, bytes - text) : STATUS_OK;
}
