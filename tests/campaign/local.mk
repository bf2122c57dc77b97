check_PROGRAMS += tests/campaign/mutate
