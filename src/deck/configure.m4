SLUICE_PACKAGE([yaml], [libyaml], [required], [pc:yaml-0.1 plain], [-lyaml], [libyaml-dev],
[#include <yaml.h>],
[yaml_parser_t parser;
if (!yaml_parser_initialize(&parser)) return 1;
yaml_parser_delete(&parser);
fprintf(out, "%s", yaml_get_version_string());])
