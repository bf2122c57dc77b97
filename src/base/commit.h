/* The commit that the program was built from. */
#pragma once

/* 12 hexadecimal digits, with "-dirty" after a change that was not committed. "unknown": neither a
 * git checkout nor an archive of make dist. */
extern const char sluice_commit[];

/* The date of this commit as 2026-11-25. Empty: unknown. */
extern const char sluice_date[];
