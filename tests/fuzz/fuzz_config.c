/* config.json. An accepted file is printed. The print must be read back with the same values, and
 * be printed the same again. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "fuzz.h"
#include "model/hf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct hf_config config, again;
  char *text[2] = {0};
  log_set_level(LOG_ERROR); /* unknown keys are warned of */
  if (!fuzz_accepted(hf_config_read(fuzz_file("config.json", data, size), &config)))
    return 0;
  fuzz_expect(hf_config_print(&config, &text[0]) == STATUS_OK, "a configuration cannot be printed");
  if (!fuzz_accepted(hf_config_read(fuzz_file("printed.json", text[0], strlen(text[0])), &again)))
    fuzz_expect(false, status_text());
  fuzz_expect(hf_config_print(&again, &text[1]) == STATUS_OK,
              "a configuration cannot be printed again");
  fuzz_expect(strcmp(text[0], text[1]) == 0,
              "a configuration read from what was printed is another one");
  mem_free(text[0]);
  mem_free(text[1]);
  return 0;
}
