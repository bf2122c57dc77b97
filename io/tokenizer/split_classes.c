/* Runs of code points, expanded to pages of 256. */
#include "io/tokenizer/split_classes.h"

#include <stdlib.h>
#include <string.h>

/* Runs of one class, in the order of code points: a run's length in hexadecimal digits, then the
 * letter of its class. Made by tests/io/tokenizer/unicode_tables.py. */
static const char runs[] =
    "9o5s12o1sfoan7o1al6o1alao1s1ao1s9o1l7o2n1o1l3o1n1l1o3n1o17l1o1fl1o1cal4ocleo5l7o1l1o1l81o5l1o"
    "2l2o4l1o1l6o1l1o3l1o1l1o14l1o53l1o8bl8oa6l1o26l2o1l6o29l47o1bl4o4l2do2bl15oan4o2l1o63l1o1lfo2l"
    "7o2lan3l2o1l10o1l1o1el1do59lbo1leoan21l9o2l4o1l5o16l4o1l9o1l3o1l17o19l7obl5o18l1o6l11o2al3ao"
    "36l3o1l12o1l7oal4oan1o10l4o8l2o2l2o16l1o7l1o1l3o4l3o1l10o1ldo2l1o3l4oan2l2o6n2o1l8o6l4o2l2o16l"
    "1o7l1o2l1o2l1o2l1fo4l1o1l7oan2o3l10o9l1o3l1o16l1o7l1o2l1o5l3o1l12o1lfo2l4oan9o1lbo8l2o2l2o16l"
    "1o7l1o2l1o5l3o1l1eo2l1o3l4oan1o1l6nbo1l1o6l3o3l1o4l3o2l1o1l1o2l3o2l3o3l3ocl16o1l15odn12o8l1o3l"
    "1o17l1o10l3o1l1ao3l2o1l2o2l4oan8o7n1o1l4o8l1o3l1o17l1oal1o5l3o1l1fo2l1o2l4oan1o2l11o9l1o3l1o"
    "29l2o1l10o1l5o3l1o7n3l4o13n1o6l5o12l3o18l1o9l1o1l2o7l1foan11o30l1o2lco7l9oan27o2l1o1l1o5l1o18l"
    "1o1l1oal1o2l9o1l2o5l1o1l9oan2o4l20o1l1fo14nco8l1o24l1bo5l73o2bl14o1lan6o6l4o4l3o1l3o2l7o3l4odl"
    "co1l1oan6o26l1o1l5o1l2o2bl1o14dl1o4l2o7l1o1l1o4l2o29l1o4l2o21l1o4l2o7l1o1l1o4l2ofl1o39l1o4l2o"
    "43leo14n3o10l10o56l2o6l3o26cl2o11l1s1al5o4bl3o3n8l7o12ldo13leo12leodl1o3lfo34l23o1l4o1l3oan6o"
    "an16oan6o59l7o5l2o22l1o1l5o46lao1fl27oan1el2o5lbo2cl4o1al6obn25o17l9o35l2boan6oando1l5do2fl11o"
    "8l3oan29o1eldo2lan2cl1ao24l1coan3o3lan24l2obl5o2bl2o3l29o4l1o6l1o2l3o1l5oc0l40o116l2o6l2o26l2o"
    "6l2o8l1o1l1o1l1o1l1o1fl2o35l1o7l1o1l3o3l1o7l3o4l2o6l4odl5o3l1o7l3obs1do2s5o1s2fo1s10o1n1l2o6n"
    "5o1lan6odl65o1l4o1l2oal1o1l3o5l6o1l1o1l1o1l1o4l1obl2o4l5o5l4o1l1o33n2l5n2d6o3cn4eo16n276o1en"
    "46coe5l6o4l3o2l9o1n2o26l1o1l5o1l2o38l7o1l10o17l9o7l1o7l1o7l1o7l1o7l1o7l1o7l1o7l50o1l1d0o1s4o2l"
    "1n19o9n7o5l2o3n2l4o56l6o3l1o5al1o4l5o2bl1o5el3o4nao20l30o10l20oan1eo8n1ofn20oan27ofn140o19c0l"
    "40o568dl43o2el2o10dl3o10lan2l14o2fl10o1fl2o46lan27o9l2o67l2o43l2o2l1o1l1o8l15o10l1o3l1o4l1o17l"
    "do6nao34leo32l1coan18o6l3o1l1o2l1oan1clao17l19o1dl7o2fl1co1lan6o5l1oalan5l1o29l17o3l1o8l4oan6o"
    "17l3o1l3o32l1o1l3o2l2o5l2o1l1o1l18o3l2obl7o3lco6l2o6l2o6l9o7l1o7l1o2bl1oel6o73ldoan6o2ba4lco"
    "17l4o31l2104o16el2o6al26o7lco5l5o1l1oal1odl1o5l1o1l1o2l1o2l1o6cl21o16bl12o40l2o36l28ocl74o5l1o"
    "87l13oan7o1al6o1albo59l3o6l2o6l2o6l2o3l23ocl1o1al1o13l1o2l1ofl2oel22o7blco2dnco39n11o2nf4o1dl"
    "3o31l10o1bn4o20l4n9o14l1n8l1n5o26lao1el2o24l4o8l1o5n2ao9el2oan6o24l4o24l4o28l8o34lcobl1ofl1o7l"
    "1o2l1obl1ofl1o7l1o2l3o34lco137l9o16lao8l18o6l1o2al1o9l45o6l2o1l1o2cl1o2l3o1l2o17l2o8n17l2o7n"
    "1fl8o9n30o13l1o2l5o5n16l6n4o1al46o38l4o2n2l10n2o2en1lfo4l1o3l1o1dlao9n17o1dl2n1o1dl3n20o8l1o"
    "1cl6o5n10o36lao16l2o8n13l5o8n12l17o7n50o49l37o33ldo33l7o6n24lcoan6oan1cl9o17ldao1fn1o2al6o2l"
    "10o3l3bo1dlan1l8o16lbo4n1bo12l2eo15l7n14o17lco35l1ao1en1o2l2o1ldo2dl20o19l7oan9o24lfoan4o1l2o"
    "1l8o23l3o1lco30leo4lboan1l1o1l4o14nbo12l1o19l13o2l3fo7l1o1l1o4l1ofl1oal7o2fl11oanbo8l2o2l2o16l"
    "1o7l1o2l1o5l3o1l12o1lco5l1eoal1o1l2o1l1o26l1o1l19o1l1o1l2co35l12o4l5oan5o3l1eo30l14o2l1o1l8oan"
    "a6o2fl29o4l24o30l14o1lboan26o2bldo1l7oan6o14n1co1bl15ocn4o7lb9o2cl74o40l13nco8l2o1l2o8l1o2l1o"
    "18lfo1l1o1leoan46o8l2o27l10o1l1o1l1co1lao28l7o1l15o1lbo2el13o1l12o49lc7o21lfoan6o9l1o25l11o1l"
    "fo1dn5o1el70o7l1o2l1o26l15o1l9oan6o6l1o2l1o20leo1l7oan136o13lfo1l1odl1o22l1coan56o1lfo15n2bo"
    "39al66o6fn11oc4la4co61lfo430l11o6l19of9bl5o247l1ab9o1el12oan6c6o239l7o1fl1oan6o4fl1oan6o1el12o"
    "30l10o4lcoan1o7n1o15l5o13l1b0o2dl3oanc6o40l17n69o4bl5o1l42odl40o2l1o1l1co17f8l8o4d6l29oal22e7o"
    "4l1o7l1o2l1o123lfo1l1do3l2o1leo4l8o18cl904o6bl5odl3o9l7oal1056oan5c6o14nco14n6co19n87o55l1o47l"
    "1o2l2o1l2o2l2o4l1ocl1o1l1o7l1o41l1o4l2o8l1o7l1o1cl1o4l1o5l1o1l3o7l1o154l2o19l1o19l1o1fl1o19l1o"
    "1fl1o19l1o1fl1o19l1o1fl1o19l1o8l2o32n700o1fl6o6l105o3el92o2dlao7l2oan4o1l141o1el12o2cl4oan1d6o"
    "1cl4oand6o1el2o1lan1e5o7l1o4l1o2l1ofl1oc5l2o9n30o44l7o1l4oan317o3bn1o3n1o4n4co2dn1ofnc2o4l1o"
    "1bl1o2l1o1l2o1l1oal1o4l1o1l1o1l6o1l4o1l1o1l1o1l1o3l1o2l1o1l2o1l1o1l1o1l1o1l1o1l1o2l1o1l2o4l1o"
    "7l1o4l1o4l1o1l1oal1o11l5o3l1o5l1o11l244odnae3oan406oa6e0l20o103al6odel2o1682leo1d31lfo26el9a2o"
    "21el5e2o134bl5o1060lddc50o";
static const char letters[] = {
    [SPLIT_OTHER] = 'o', [SPLIT_LETTER] = 'l', [SPLIT_NUMBER] = 'n', [SPLIT_SPACE] = 's'};

/* Equal pages are stored once. */
static uint8_t add_page(struct split_classes *out, const uint8_t page[256], int *pages)
{
  int same = 0;
  while (same < *pages && memcmp(out->page[same], page, 256) != 0)
    same++;
  if (same == *pages)
    memcpy(out->page[(*pages)++], page, 256);
  return (uint8_t)same;
}

void split_classes_fill(struct split_classes *out)
{
  int pages = 0;
  char *letter; /* of the run */
  size_t left = strtoul(runs, &letter, 16);
  for (int i = 0; i < SPLIT_PAGES; i++) {
    uint8_t page[256];
    for (size_t k = 0, n; k < 256; k += n) {
      if (left == 0)
        left = strtoul(letter + 1, &letter, 16);
      n = left < 256 - k ? left : 256 - k;
      memset(page + k, (int)((char *)memchr(letters, *letter, sizeof letters) - letters), n);
      left -= n;
    }
    out->index[i] = add_page(out, page, &pages);
  }
}
