/* Kinds of files that a broken download or a wrong name leaves in a folder. */
#include "io/text/file_kind.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const char again[] = "download the file again, for example with hf download",
                  texts_only[] = "give files of text",
                  convert[] = "load it in PyTorch, and save the model with save_pretrained()",
                  python[] = "write it as JSON Lines in Python first",
                  utf32[] = "convert it first: iconv -f UTF-32 -t UTF-8 FILE > OUT",
                  utf16[] = "convert it first: iconv -f UTF-16 -t UTF-8 FILE > OUT",
                  annex[] = "fetch the file with git annex get",
                  lfs[] = "fetch the file with git lfs pull, or download it again";

#define PANDAS(READ)                                                                               \
  "convert it to JSON Lines first: python3 -c 'import pandas, sys; pandas." READ                   \
  "(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' FILE OUT.jsonl"
/* A cure for texts and for files of a model. */
#define UNPACK(COMMAND) "unpack it first: " COMMAND, "unpack it first: " COMMAND

/* The first row that matches counts. */
static const struct file_kind binary[] = {
    {4, 6, "\0\0\0\0{\"", "a safetensors file", texts_only, again, false},
    {0, 4, "PAR1", "a Parquet file", PANDAS("read_parquet"), again, true},
    {0, 6, "ARROW1", "an Arrow file", PANDAS("read_feather"), again, true},
    {0, 4, "\xFF\xFF\xFF\xFF", "an Arrow stream",
     "convert it to JSON Lines first: python3 -c 'import datasets, sys; datasets.Dataset.from_file"
     "(sys.argv[1]).to_json(sys.argv[2])' FILE OUT.jsonl",
     again, true},
    {0, 3, "ORC", "an ORC file", PANDAS("read_orc"), again, true},
    {0, 4, "Obj\1", "an Avro file", "convert it to JSON Lines first: avro-tools tojson FILE > OUT",
     again, false},
    {0, 3, "BZh", "a file compressed by bzip2", UNPACK("bzcat FILE > OUT"), true},
    {0, 6, "\xFD\x37zXZ\0", "a file compressed by xz", UNPACK("xzcat FILE > OUT"), false},
    {0, 4, "\x04\x22\x4D\x18", "a file compressed by lz4", UNPACK("lz4cat FILE > OUT"), false},
    {0, 2, "\x1F\x9D", "a file compressed by compress", UNPACK("zcat FILE > OUT"), false},
    {0, 2, "\x1F\x8B", "a file compressed by gzip", UNPACK("zcat FILE > OUT"), false},
    {0, 4, "\x28\xB5\x2F\xFD", "a file compressed by zstd", UNPACK("zstdcat FILE > OUT"), false},
    {0, 4, "PK\3\4", "a zip archive, as .docx, .npz and PyTorch's .bin and .pt files are",
     "unpack it first: unzip FILE", convert, false},
    {0, 6, "7z\xBC\xAF\x27\x1C", "a 7z archive", UNPACK("7z x FILE"), false},
    {0, 6, "Rar!\x1A\7", "a RAR archive", UNPACK("unrar x FILE"), false},
    {257, 5, "ustar", "a tar archive", UNPACK("tar -xf FILE"), true},
    {0, 5, "%PDF-", "a PDF file", "convert it first: pdftotext FILE OUT.txt", again, false},
    {0, 16, "SQLite format 3", "an SQLite database",
     "export its text first: sqlite3 -json FILE 'select text from TABLE' > OUT.json", again, false},
    {0, 4, "\xD0\xCF\x11\xE0", "a document of Microsoft Office",
     "convert it first: soffice --convert-to txt FILE", again, false},
    {0, 2, "\x80\2", "a Python pickle", python, convert, false},
    {0, 2, "\x80\3", "a Python pickle", python, convert, false},
    {0, 2, "\x80\4", "a Python pickle", python, convert, false},
    {0, 2, "\x80\5", "a Python pickle", python, convert, false},
    {0, 8, "\x89HDF\r\n\x1A\n", "an HDF5 file", texts_only,
     "a checkpoint of Sluice is named by its path, without a folder around it", false},
    {0, 6, "\x93NUMPY", "a NumPy array", texts_only, "save the model as safetensors", false},
    {0, 7, "MMIDIDX", "an index of Megatron's data", "give the text that it was made from", again,
     true},
    {0, 4, "GGUF", "a GGUF model", texts_only, "use the model's safetensors files", true},
    {0, 23, "version https://git-lfs", "a pointer of Git LFS", lfs, lfs, false},
    {0, 22, "version https://hawser", "a pointer of Git LFS", lfs, lfs, false},
    {0, 13, "# xet version", "a pointer of Xet", again, again, false},
    {0, 15, "/annex/objects/", "a pointer of git-annex", annex, annex, false},
    {0, 4, "\x7F\x45LF", "a program", texts_only, again, false},
    {0, 4, "\x89PNG", "an image", texts_only, again, false},
    {0, 3, "\xFF\xD8\xFF", "an image", texts_only, again, false},
    {0, 4, "GIF8", "an image", texts_only, again, true},
    {0, 4, "\xFF\xFE\0", "UTF-32 text", utf32, utf32, false},
    {0, 4, "\0\0\xFE\xFF", "UTF-32 text", utf32, utf32, false},
    {0, 2, "\xFF\xFE", "UTF-16 text", utf16, utf16, false},
    {0, 2, "\xFE\xFF", "UTF-16 text", utf16, utf16, false},
};

/* Beginnings of texts, after white space. Letters count in either case. */
static const struct {
  const char *begins, *is, *cure;
} texts[] = {
    {"<!doctype html", "a page of HTML", again}, {"<html", "a page of HTML", again},
    {"<head", "a page of HTML", again},          {"<body", "a page of HTML", again},
    {"<", "a text in XML or HTML", again},
};

/* First keys of objects that servers send in place of a file. */
static const char *const errors[] = {"\"error", "\"message\"", "\"detail\""};

const struct file_kind *file_kind_find(const char *start, size_t bytes)
{
  bool controls = false;
  for (size_t i = 0; i < bytes && i < FILE_KIND_BYTES; i++)
    controls = controls || (unsigned char)start[i] < '\t';
  for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) {
    const struct file_kind *kind = &binary[i];
    if (bytes >= kind->at + kind->bytes && (!kind->weak || controls) &&
        !memcmp(start + kind->at, kind->magic, kind->bytes))
      return kind;
  }
  return NULL;
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
    if (bytes >= strlen(texts[i].begins) &&
        !strncasecmp(text, texts[i].begins, strlen(texts[i].begins)))
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
  static const char zeros[16];
  if (bytes >= sizeof zeros && !memcmp(start, zeros, sizeof zeros))
    return refuse(path, wanted, "a file of zeros, as an unfinished download leaves it", again);
  const struct file_kind *kind = file_kind_find(start, bytes);
  if (kind)
    return refuse(path, wanted, kind->is, kind->model_cure);
  return text < bytes ? refuse_text(path, wanted, start + text, bytes - text) : STATUS_OK;
}
