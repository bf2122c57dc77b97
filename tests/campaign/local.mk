check_PROGRAMS += tests/campaign/mutate
tests_campaign_mutate_SOURCES = tests/campaign/mutate.c $(io_sample)
