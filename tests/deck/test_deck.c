/* The deck: its checks, what it means on P ranks, its name. Oracle: rules of deck.h, case by case;
 * decks of inputs/. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/prose.h"
#include "deck/deck.h"
#include "tests/test.h"

enum { MOST = 8 };

#define UNITS_8 "a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,"
#define UNITS_33 "[" UNITS_8 UNITS_8 UNITS_8 UNITS_8 "a=1]"

/* `text` holds assignments separated by blanks. */
static enum status load(struct deck *deck, const char *text)
{
  char copy[512], *assignment[MOST], *rest;
  int n = 0;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    assignment[n++] = word;
  return deck_load(deck, n, assignment);
}

TEST(test_impossible_combinations)
{
  static const struct {
    const char *given, *sentence;
  } known[] = {
      {"run.dir=a\x1b[2J", "run.dir (command line) has a control character: 'a?[2J'; remove it"},
      {"train.freeze=[a,b\u202ec]",
       "train.freeze (command line) has a control character: 'b<U+202E>c'; remove it"},
      {"run.dir=\u201cx\u201d",
       "run.dir (command line) begins with the quotation mark U+201C, \u201cx\u201d: use \" or '"},
      {"data.train=\u00abx\u00bb", "data.train (command line) begins with the quotation mark "
                                   "U+00AB, \u00abx\u00bb: use \" or '"},
      {"run.dir=", "run.dir (command line) must name a folder, such as runs/first"},
      {"model.width=100", "model.width (command line) is 100, which model.heads (default) = 12 "
                          "does not divide; use 96 or 108, or give model.head_width"},
      {"model.width=5", "model.width (command line) is 5, which model.heads (default) = 12 does "
                        "not divide; use 12, or give model.head_width"},
      {"model.width=786444",
       "model.width (command line) is 786444 and model.heads (default) is 12, so a head has more "
       "than 65536 elements; use more heads, or model.head_width if model.arch is not gpt2"},
      {"data.sequence=2048", "data.sequence (command line) is 2048 tokens, more than model.context "
                             "(default) = 1024; shorten the sequence or lengthen the context"},
      {"shard.group=4", "shard.group (command line) is '4', but shard.strategy (default) is "
                        "full_shard, which works on all ranks; leave it out, or use "
                        "shard.strategy=hybrid_shard"},
      {"shard.strategy=no_shard shard.group=node",
       "shard.group (command line) is 'node', but shard.strategy (command line) is no_shard, which "
       "works on all "
       "ranks; leave it out, or use shard.strategy=hybrid_shard"},
      {"shard.strategy=hybrid_shard shard.group=world",
       "shard.group (command line) is world, but shard.strategy (command line) is hybrid_shard, "
       "whose groups are smaller; leave it out, which means "
       "node, or set shard.group=N ranks"},
      {"shard.strategy=hybrid_shard shard.group=0",
       "shard.group (command line) must be auto, world, node or a number of ranks, not '0'"},
      {"shard.strategy=hybrid_shard shard.group=two",
       "shard.group (command line) must be auto, world, node or a number of ranks, not 'two'"},
      {"shard.group=",
       "shard.group (command line) must be auto, world, node or a number of ranks, not ''"},
      {"shard.group=9999999999", "shard.group (command line) must be auto, world, node or a number "
                                 "of ranks, not '9999999999'"},
      {"tiers.activations=recompute:13",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'recompute:13'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give "
       "up to 12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=recompute:0",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'recompute:0'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up "
       "to 12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=recompute:",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'recompute:'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up "
       "to 12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=offload",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'offload'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up to "
       "12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=keep:2",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'keep:2'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up to "
       "12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=host,",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'host,'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up to 12 "
       "words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not ''. "
       "All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up to 12 words, "
       "which blocks take in turn, such as recompute,host"},
      {"tiers.activations=host:2,keep",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'host:2,keep'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up "
       "to 12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=recompute,,host",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'recompute,,host'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or "
       "give up to 12 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=nvmes",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'nvmes'. All but keep may end in :K, for every K-th block (K is 1 to 12). Or give up to 12 "
       "words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=keep,host,nvme model.layers=2",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'keep,host,nvme'. All but keep may end in :K, for every K-th block (K is 1 to 2). Or give "
       "up to 2 words, which blocks take in turn, such as recompute,host"},
      {"tiers.activations=host:129 model.layers=200",
       "tiers.activations (command line) must be keep, keep_host, recompute, host or nvme, not "
       "'host:129'. All but keep may end in :K, for every K-th block (K is 1 to 128). Or give up "
       "to 128 words, which blocks take in turn, such as recompute,host"},
      {"tiers.params=host", "tiers.params (command line) is host and tiers.optimizer (default) is "
                            "device, but parameters live where they are "
                            "updated: set both to the same"},
      {"tiers.optimizer=host", "tiers.params (default) is device and tiers.optimizer (command "
                               "line) is host, but parameters live where they are "
                               "updated: set both to the same"},
      {"transfer.grads=cpu_reduce", "transfer.grads (command line) is cpu_reduce, which is for "
                                    "masters in host memory: set tiers.params=host and "
                                    "tiers.optimizer=host, or leave it out"},
      {"tiers.params=host tiers.optimizer=host tiers.resident=2 transfer.params=full",
       "tiers.resident (command line) is 2, but only devices gather and reduce units that they "
       "update: set transfer.params=shard and transfer.grads=gpu_reduce, or leave it out"},
      {"tiers.params=host tiers.optimizer=host tiers.resident=1 transfer.grads=cpu_reduce",
       "tiers.resident (command line) is 1, but only devices gather and reduce units that they "
       "update: set transfer.params=shard and transfer.grads=gpu_reduce, or leave it out"},
      {"optim.update=immediate", "optim.update (command line) is immediate, but optim.clip "
                                 "(default) = 1 needs the norm of all gradients first: set "
                                 "optim.clip=0, or optim.update=deferred"},
      {"optim.state=nvme",
       "optim.state (command line) is nvme, which is for masters in host memory: set "
       "tiers.params=host and tiers.optimizer=host, or leave it out"},
      {"tiers.params=host tiers.optimizer=host optim.update=immediate",
       "optim.update (command line) is immediate, but optim.clip (default) = 1 needs the norm of "
       "all gradients first: set optim.clip=0, or "
       "optim.update=deferred"},
      {"tiers.params=host tiers.optimizer=host optim.update=immediate optim.clip=0 "
       "optim.nonfinite=skip",
       "optim.update (command line) is immediate, but optim.nonfinite (command line) is skip, and "
       "a step whose units are updated already cannot be "
       "skipped: set optim.nonfinite=stop, or optim.update=deferred"},
      {"tiers.params=host tiers.optimizer=host shard.strategy=shard_grad_op",
       "tiers.optimizer (command line) is host, which needs sharded parameters: use "
       "shard.strategy=full_shard or hybrid_shard, not shard_grad_op"},
      {"tiers.params=host tiers.optimizer=host shard.strategy=shard_optim",
       "tiers.optimizer (command line) is host, which needs sharded parameters: use "
       "shard.strategy=full_shard or hybrid_shard, not shard_optim"},
      {"tiers.params=host tiers.optimizer=host shard.strategy=no_shard",
       "tiers.optimizer (command line) is host, which needs sharded parameters: use "
       "shard.strategy=full_shard or hybrid_shard, not no_shard"},
      {"tiers.params=host tiers.optimizer=host shard.reduce=step",
       "shard.reduce (command line) is step, but with tiers.optimizer (command line) = host "
       "gradients go to the host after each micro-batch: set "
       "shard.reduce=micro or leave it out"},
      {"optim.rounding=stochastic", "optim.rounding (command line) is stochastic, but "
                                    "optim.moments (default) is fp32, which needs no rounding: "
                                    "set optim.moments=bf16 or fp16, or leave it out"},
      {"tiers.params=host tiers.optimizer=host optim.state_share=0.5",
       "optim.state_share (command line) is 0.5, but optim.state (default) is host, "
       "so all moments are in host memory: set optim.state=nvme, or leave it out"},
      {"tiers.optimizer=nvme",
       "command line: tiers.optimizer must be one of device, host, not 'nvme'"},
      {"transfer.params=half",
       "command line: transfer.params must be one of shard, full, not 'half'"},
      {"transfer.grads=gpu",
       "command line: transfer.grads must be one of gpu_reduce, cpu_reduce, not 'gpu'"},
      {"transfer.rate=-1",
       "command line: transfer.rate must be a number from 0 to 1000000, not '-1'"},
      {"optim.moments=fp8",
       "command line: optim.moments must be one of fp32, bf16, fp16, not 'fp8'"},
      {"optim.rounding=up",
       "command line: optim.rounding must be one of nearest, stochastic, not 'up'"},
      {"optim.update=late", "command line: optim.update must be one of auto, deferred, immediate, "
                            "speculative, not 'late'"},
      {"optim.state=disk", "command line: optim.state must be one of host, nvme, not 'disk'"},
      {"optim.state_share=1.5",
       "command line: optim.state_share must be a number from 0 to 1, not '1.5'"},
      {"checkpoint.background=maybe",
       "command line: checkpoint.background must be true or false, not 'maybe'"},
      {"optim.moment=bf16",
       "command line: unknown key 'optim.moment'; the nearest known key is 'optim.moments'"},
      {"tiers.nvmes=/x",
       "command line: unknown key 'tiers.nvmes'; the nearest known key is 'tiers.nvme'"},
      {"transfer.grad=gpu_reduce",
       "command line: unknown key 'transfer.grad'; the nearest known key is 'transfer.grads'"},
      {"checkpoint.foreground=true", "command line: unknown key 'checkpoint.foreground'; the "
                                     "nearest known key is 'checkpoint.background'"},
      {"optim.momentum=1", "optim.momentum (command line) must be below 1: the momentum would only "
                           "grow; a usual value is 0.95"},
      {"optim.betas=0.9,1", "optim.betas (command line) must be below 1: with 1, a moment stays 0; "
                            "usual values are [0.9, 0.95]"},
      {"optim.warmup=50 optim.decay_steps=40",
       "optim.warmup (command line) is 50 steps, longer than optim.decay_steps (command line) = "
       "40, which counts from "
       "the first step and includes it; shorten the warm-up"},
      {"checkpoint.keep_every=100",
       "checkpoint.keep_every (command line) is 100, but no checkpoints are written during "
       "training; set checkpoint.every too"},
      {"checkpoint.every=30 checkpoint.keep_every=100",
       "checkpoint.keep_every (command line) is 100, not a multiple of checkpoint.every (command "
       "line) = 30, so "
       "most of those checkpoints are never written; use 90 or 120"},
      {"run.device=gpu", "command line: run.device must be one of auto, host, cuda, not 'gpu'"},
      {"run.compute=fp16",
       "command line: run.compute must be one of auto, fp32, bf16, fp8, not 'fp16'"},
      {"compress.feedback=bf16",
       "compress.feedback (command line) is bf16, but compress.grads.codec (default) is none, "
       "whose messages lose nothing: choose a codec, or leave it out"},
      {"compress.grads.codec=none compress.feedback=fp32",
       "compress.feedback (command line) is fp32, but compress.grads.codec (command line) is none, "
       "whose messages lose nothing: choose a codec, or leave it out"},
      {"compress.warmup=5",
       "compress.warmup (command line) is 5, but compress.grads.codec (default) is none, so there "
       "is no codec to warm up for: choose a codec, or leave it out"},
      {"compress.grads.codec=bf16 compress.warmup=5 train.trace=4,6",
       "train.trace (command line) begins at step 4, but steps of the warm-up are not traced: "
       "begin at compress.warmup (command line) = 5 or later"},
      {"compress.grads.units=[h.1]",
       "compress.grads.units (command line) has 'h.1': an item is PATTERN=CODEC with at most 47 "
       "letters each, such as h.1*=int8"},
      {"compress.grads.units=[h.1=]",
       "compress.grads.units (command line) has 'h.1=': an item is PATTERN=CODEC with at most 47 "
       "letters each, such as h.1*=int8"},
      {"compress.grads.units=[=int8]",
       "compress.grads.units (command line) has '=int8': an item is PATTERN=CODEC with at most 47 "
       "letters each, such as h.1*=int8"},
      {"compress.grads.units=[h.1234567890123456789012345678901234567890123456=int8]",
       "compress.grads.units (command line) has "
       "'h.1234567890123456789012345678901234567890123456=int8': an item is PATTERN=CODEC with at "
       "most 47 letters each, such as h.1*=int8"},
      {"compress.grads.units=[a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,"
       "a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b,a=b]",
       "compress.grads.units (command line) has 33 items, and at most 32 are possible: use "
       "patterns"},
      {"optim.lr_scale=[0.5]",
       "optim.lr_scale (command line) has '0.5': an item is PATTERN=FACTOR with at most 47 letters "
       "each, such as root=0.5"},
      {"optim.lr_scale=[root=1,h.1=0]",
       "optim.lr_scale (command line) has 'h.1=0': a factor is a number above 0 and at most 1000 "
       "(train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=-1]",
       "optim.lr_scale (command line) has 'h.1=-1': a factor is a number above 0 and at most 1000 "
       "(train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=1001]",
       "optim.lr_scale (command line) has 'h.1=1001': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=nan]",
       "optim.lr_scale (command line) has 'h.1=nan': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=inf]",
       "optim.lr_scale (command line) has 'h.1=inf': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=1e999]",
       "optim.lr_scale (command line) has 'h.1=1e999': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=half]",
       "optim.lr_scale (command line) has 'h.1=half': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=0x1]",
       "optim.lr_scale (command line) has 'h.1=0x1': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=[root=1,h.1=1=2]",
       "optim.lr_scale (command line) has 'h.1=1=2': a factor is a number above 0 and at most "
       "1000 (train.freeze is for parameters that are not trained)"},
      {"optim.lr_scale=" UNITS_33,
       "optim.lr_scale (command line) has 33 items, and at most 32 are possible: use patterns"},
      {"tiers.residual=disk",
       "command line: tiers.residual must be one of device, host, nvme, not 'disk'"},
      {"compress.grads.codec=bf16 compress.feedback=fp32 optim.nonfinite=skip",
       "compress.feedback (command line) is fp32, but optim.nonfinite (command line) is skip, and "
       "the residual of a step that is not finite would spoil all later steps: set "
       "optim.nonfinite=stop, or "
       "compress.feedback=off"},
      {"compress.weights.delta=true",
       "compress.weights.delta (command line) is true, but compress.weights.codec (default) "
       "is "
       "none, so whole parameters are sent: choose a codec, or leave it out"},
      {"compress.grads.density=2",
       "command line: compress.grads.density must be a number from 0 to 1, not '2'"},
      {"compress.grads.block=-1", "command line: compress.grads.block must be an integer from 0 to "
                                  "1048576, not '-1'"},
      {"compress.grads=bf16", "command line: unknown key 'compress.grads'; it is a section: name "
                              "one of its keys, such as 'compress.grads.codec'"},
      {"compress.grads.reduce_dtype=bf16", "command line: unknown key "
                                           "'compress.grads.reduce_dtype': use "
                                           "compress.grads.codec"},
      {"comm.backend=gloo",
       "command line: comm.backend must be one of auto, mpi, nccl, not 'gloo'"},
      {"train.trace=7", "command line: train.trace must be a list of 2 integers of at least 0, or "
                        "an empty one, but 1 was given"},
      {"train.trace=-1,7", "command line: train.trace must be a list of 2 integers of at least 0, "
                           "or an empty one, not '-1'"},
      {"train.trace=7,7", "train.trace (command line) is [7, 7], which holds no step: the first "
                          "number is the first step, the second the step after the last"},
      {"run.counters=cycles,auto", "run.counters (command line) has 'auto' in its list: give none "
                                   "or auto alone, or names of events"},
      {"run.counters=none,none", "run.counters (command line) has 'none' in its list: give none or "
                                 "auto alone, or names of events"},
      {"run.counters=a,b,c,d,e,f,g,h,i", "run.counters (command line) names 9 events, and at most "
                                         "8 are counted at a time: count the rest in another run"},
      {"train.trace=[8,7]", "train.trace (command line) is [8, 7], which holds no step: the first "
                            "number is the first step, the second the step after the last"},
      {"optim.no_decay=norms",
       "command line: optim.no_decay must be a list of any of norm, bias, embedding, not 'norms'"},
      {"shard.prefetch=9", "command line: shard.prefetch must be an integer from 0 to 8, not '9'"},
      {"run.steps=4294967297",
       "command line: run.steps must be an integer from 1 to 4294967296, not '4294967297'"},
      {"model.layers=65537",
       "command line: model.layers must be an integer from 1 to 65536, not '65537'"},
      {"model.window_from=65537",
       "command line: model.window_from must be an integer from 0 to 65536, not '65537'"},
      {"model.layer=2",
       "command line: unknown key 'model.layer'; the nearest known key is 'model.layers'"},
      {"trainer.steps=2",
       "command line: unknown key 'trainer.steps'; the nearest known key is 'run.steps'"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    assert_int_equal(load(&deck, known[i].given), STATUS_USAGE);
    assert_string_equal(status_text(), known[i].sentence);
    assert_null(deck.set);
  }
}

/* As at a shell. Each key that is a path, in a deck and on the command line; "" is accepted. */
TEST(test_paths)
{
  static const char *const keys[] = {"run.dir", "train.init", "data.train", "data.val",
                                     "tiers.nvme"};
  static const struct {
    const char *value, *cure;
  } paths[] = {
      {"~/runs", "only a shell replaces ~: write /home/me/runs"},
      {"~", "only a shell replaces ~: write /home/me"},
      {"~you/runs", "only a shell replaces ~: write the whole path, or ./~you/runs for a file of "
                    "that name"},
      {"$HOME/x", "only a shell replaces a variable or a command: write its value"},
      {"runs/${SLURM_JOB_ID}", "only a shell replaces a variable or a command: write its value"},
      {"$(pwd)/x", "only a shell replaces a variable or a command: write its value"},
      {"`pwd`/x", "only a shell replaces a variable or a command: write its value"},
      {"s3://bucket/x", "only files and folders are read and written: name one, or mount it"},
      {"nowhere/*", "only a shell replaces a pattern: write one path without *, ? and []"},
      {"run-?", "only a shell replaces a pattern: write one path without *, ? and []"},
      {"run[12]", "only a shell replaces a pattern: write one path without *, ? and []"},
      {"\"runs/x\"", "the quotation marks would be part of the name: remove them"},
      {"'runs/x'", "the quotation marks would be part of the name: remove them"},
      {"runs/x ", "a blank or a line end at an end of it would be part of the name: remove it"},
      {"runs/x\r", "a blank or a line end at an end of it would be part of the name: remove it"},
      {" runs/x", "a blank or a line end at an end of it would be part of the name: remove it"},
      {"./~/runs", ""},
      {"a~b", ""},
      {"cost$5/$", ""},
      {"my runs/it's #1, \"a\" b", ""},
      {"/tmp", ""},
  };
  assert_int_equal(setenv("HOME", "/home/me", 1), 0);
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
      struct deck deck = {0};
      char given[200], wanted[400];
      snprintf(given, sizeof given, "%s=%s", keys[k], paths[i].value);
      snprintf(wanted, sizeof wanted, "command line: %s is the path '%s', and %s", keys[k],
               paths[i].value, paths[i].cure);
      const enum status status = deck_load(&deck, 1, (char *[]){given});
      if (*paths[i].cure && (status != STATUS_USAGE || !strstr(status_text(), paths[i].cure)))
        fail_msg("%s: %s", given, status ? status_text() : "accepted");
      if (!*paths[i].cure && status)
        fail_msg("%s: %s", given, status_text());
      if (*paths[i].cure && !strchr(paths[i].value, '\r'))
        assert_string_equal(status_text(), wanted);
      deck_destroy(&deck);
    }
  struct deck deck = {0};
  static const char yaml[] = "run: {steps: 3}\ndata: {train: ~/data}\n";
  assert_int_equal(deck_load_text(&deck, "d.yaml", yaml, strlen(yaml), 0, NULL), STATUS_USAGE);
  assert_string_equal(status_text(), "d.yaml:2: data.train is the path '~/data', and only a shell "
                                     "replaces ~: write /home/me/data");
  for (const struct option *option = deck_table; option->name; option++) {
    bool named = false;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
      named = named || !strcmp(option->name, keys[k]);
    assert_int_equal(option->path, named);
  }
}

/* A name that exists is what the user means. */
TEST(test_paths_that_exist)
{
  char given[64] = "run.dir=/tmp/sluice-*-XXXXXX";
  struct deck deck = {0};
  assert_non_null(mkdtemp(given + strlen("run.dir=")));
  assert_int_equal(deck_load(&deck, 1, (char *[]){given}), STATUS_OK);
  assert_string_equal(deck.run.dir, given + strlen("run.dir="));
  assert_int_equal(rmdir(deck.run.dir), 0);
  deck_destroy(&deck);
}

TEST(test_possible_combinations)
{
  static const char *const good[] = {
      "",
      "run.steps=50 optim.warmup=100",
      "optim.warmup=40 optim.decay_steps=40",
      "data.batch=12 data.micro_batch=4",
      "data.batch=10 data.micro_batch=4", /* nothing but training has a batch: deck_resolve() */
      "model.layers=65536 model.window_from=65536",
      "data.sequence=1024",
      "shard.strategy=hybrid_shard shard.group=node",
      "shard.strategy=hybrid_shard shard.group=16",
      "tiers.activations=recompute:12",
      "tiers.activations=keep,recompute,host,nvme",
      "tiers.nvme=/scratch transfer.params=full optim.update=deferred", /* nothing to do with
                                                                           masters on the device,
                                                                           and no harm */
      "optim.moments=bf16 optim.rounding=stochastic",
      "optim.moments=fp16 optim.rounding=stochastic",
      "tiers.params=host tiers.optimizer=host shard.strategy=hybrid_shard shard.group=2 "
      "transfer.params=full transfer.grads=cpu_reduce",
      "tiers.params=host tiers.optimizer=host optim.update=immediate optim.clip=0 optim.state=nvme "
      "optim.state_share=0.25",
      "tiers.params=host tiers.optimizer=host optim.nonfinite=skip optim.clip=0 shard.reduce=micro",
      "checkpoint.every=50 checkpoint.keep_every=100",
      "checkpoint.every=9223372036854775807 checkpoint.keep_every=9223372036854775807",
      "optim.no_decay=[]",
      "run.counters=none",
      "run.counters=a,b,c,d,e,f,g,h",
      "train.trace=0,1",
      "train.trace=[]",
      "run.device=host run.compute=bf16 comm.backend=mpi compress.grads.codec=bf16",
      "compress.grads.codec=bf16 compress.feedback=fp32",
      "compress.grads.units=[h.1=int8] compress.feedback=fp32 compress.warmup=5 "
      "tiers.residual=nvme",
      "compress.grads.codec=bf16 compress.warmup=5 train.trace=5,6",
      "run.device=cuda run.compute=fp32 comm.backend=nccl", /* whether there is one:
                                                               job_choose_place() */
  };
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    struct deck deck;
    if (load(&deck, good[i]))
      fail_msg("%s: %s", good[i], status_text());
    deck_destroy(&deck);
  }
}

TEST(test_where_of_files)
{
  struct deck deck;
  static const char text[] = "model:\n  layers: 2\n  width: 10\n  heads: 4\n";
  assert_int_equal(deck_load_text(&deck, "step-1.h5", text, sizeof text - 1, 0, NULL),
                   STATUS_USAGE);
  assert_string_equal(status_text(),
                      "model.width (step-1.h5:3) is 10, which model.heads (step-1.h5:4) = 4 does "
                      "not divide; use 8 or 12, or give model.head_width");
  char *assignments[] = {"model.width=8"};
  assert_int_equal(deck_load_text(&deck, "step-1.h5", text, sizeof text - 1, 1, assignments),
                   STATUS_OK);
  assert_int_equal(deck.model.width, 8);
  assert_string_equal(options_where(deck.set, "model.heads"), "step-1.h5:4");
  deck_destroy(&deck);
}

static void check_pattern(const struct deck_pattern *found, const struct deck_pattern *expected)
{
  assert_int_equal(found->n, expected->n);
  assert_memory_equal(found->of, expected->of, sizeof found->of);
}

/* A deck that keeps checkpoints, of which none are written. */
TEST(test_no_checkpoints)
{
  struct deck deck;
  static const char text[] = "checkpoint: {every: 10, keep_every: 100}\n";
  static char *none[] = {"checkpoint.every=0", "checkpoint.keep_every=200"};
  assert_int_equal(deck_load_text(&deck, "deck", text, sizeof text - 1, 1, none), STATUS_OK);
  assert_int_equal(deck.checkpoint.keep_every, 0);
  deck_destroy(&deck);
  assert_int_equal(deck_load_text(&deck, "deck", text, sizeof text - 1, 2, none), STATUS_USAGE);
}

TEST(test_activations)
{
  static const struct {
    const char *text;
    int64_t layers;
    struct deck_pattern pattern; /* n 0: refused */
  } known[] = {
      {"keep", 1, {1, {KEEP_ACTIVATIONS}}},
      {"recompute", 12, {1, {KEEP_INPUT}}},
      {"host", 12, {1, {KEEP_INPUT_HOST}}},
      {"nvme", 12, {1, {KEEP_INPUT_NVME}}},
      {"keep_host", 12, {1, {KEEP_ACTIVATIONS_HOST}}},
      {"keep_host:2", 12, {2, {KEEP_ACTIVATIONS_HOST, KEEP_ACTIVATIONS}}},
      {"host:1", 12, {1, {KEEP_INPUT_HOST}}},
      {"nvme:3", 3, {3, {KEEP_INPUT_NVME, KEEP_ACTIVATIONS, KEEP_ACTIVATIONS}}},
      {"recompute:128", 128, {128, {KEEP_INPUT}}},
      {"recompute,host", 2, {2, {KEEP_INPUT, KEEP_INPUT_HOST}}},
      {"keep,nvme,keep,recompute",
       4,
       {4, {KEEP_ACTIVATIONS, KEEP_INPUT_NVME, KEEP_ACTIVATIONS, KEEP_INPUT}}},
      {"recompute:129", 1000, {0}},
      {"nvme:4", 3, {0}},
      {"keep,keep", 1, {0}},
      {"keep:1", 3, {0}},
      {"host: 1", 3, {0}},
      {"recompute, host", 3, {0}},
      {",host", 3, {0}},
      {":2", 3, {0}},
      {"hos", 3, {0}},
      {"hosts", 3, {0}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck_pattern pattern = {.n = -1};
    const bool good = known[i].pattern.n > 0;
    if (deck_parse_activations(known[i].text, known[i].layers, &pattern) != good)
      fail_msg("'%s' is %s", known[i].text, good ? "refused" : "taken");
    if (good)
      check_pattern(&pattern, &known[i].pattern);
    else
      assert_int_equal(pattern.n, -1);
  }
  const struct deck_pattern none = {0}, mixed = {2, {KEEP_INPUT, KEEP_ACTIVATIONS_HOST}};
  assert_true(deck_keeps(&none, KEEP_ACTIVATIONS) && !deck_keeps(&none, KEEP_INPUT));
  assert_true(deck_keeps(&mixed, KEEP_INPUT) && deck_keeps(&mixed, KEEP_ACTIVATIONS_HOST) &&
              !deck_keeps(&mixed, KEEP_ACTIVATIONS));
  char longest[1024] = "keep";
  struct deck_pattern pattern;
  for (int i = 1; i < DECK_PATTERN; i++)
    strcat(longest, ",host");
  assert_true(deck_parse_activations(longest, 1000, &pattern) && pattern.n == DECK_PATTERN &&
              pattern.of[DECK_PATTERN - 1] == KEEP_INPUT_HOST);
  assert_false(deck_parse_activations(longest, DECK_PATTERN - 1, &pattern));
  strcat(longest, ",host");
  assert_false(deck_parse_activations(longest, 1000, &pattern));
}

/* Resolved decks with masters in host memory, and with moments in 16 bits. */
static void assert_codec(const struct deck_codec *got, const struct deck_codec *expected)
{
  assert_string_equal(got->codec ? got->codec : "", expected->codec ? expected->codec : "");
  assert_string_equal(got->values ? got->values : "", expected->values ? expected->values : "");
  assert_true(got->block == expected->block && got->levels == expected->levels &&
              got->rank == expected->rank && got->density == expected->density &&
              got->threshold == expected->threshold);
}

TEST(test_tiers)
{
  static const char host[] = "tiers.params=host tiers.optimizer=host";
  static const struct {
    bool on_host;
    const char *given;
    int ranks, local_ranks;
    struct deck_policy policy;
  } known[] = {
      {true, "", 4, 4, {.host_state = true, .speculative = true}},
      {true,
       "transfer.params=full transfer.grads=cpu_reduce",
       4,
       4,
       {.host_state = true, .params_full = true, .cpu_reduce = true}},
      {true,
       "transfer.grads=cpu_reduce shard.strategy=hybrid_shard shard.group=2",
       8,
       4,
       {.host_state = true, .cpu_reduce = true}},
      {true,
       "transfer.grads=cpu_reduce shard.strategy=hybrid_shard shard.group=4",
       8,
       2,
       {.host_state = true, .cpu_reduce = true}},
      {true,
       "transfer.params=full transfer.grads=cpu_reduce",
       1,
       1,
       {.host_state = true}}, /* a single rank has no other rank to share or to add with */
      {true,
       "transfer.params=full shard.strategy=hybrid_shard shard.group=node",
       8,
       4,
       {.host_state = true, .params_full = true, .speculative = true}},
      {true,
       "transfer.params=full shard.strategy=hybrid_shard shard.group=2",
       8,
       4,
       {.host_state = true, .params_full = true, .speculative = true}},
      {true, "transfer.grads=cpu_reduce", 8, 2, {.host_state = true, .cpu_reduce = true}},
      {true, "optim.clip=0", 2, 2, {.host_state = true, .immediate = true}},
      {true, "optim.clip=0 optim.update=immediate", 2, 2, {.host_state = true, .immediate = true}},
      {true, "optim.clip=0 optim.update=deferred", 2, 2, {.host_state = true}},
      {true, "optim.clip=0 optim.nonfinite=skip", 2, 2, {.host_state = true, .speculative = true}},
      {true, "optim.clip=0.5", 2, 2, {.host_state = true, .speculative = true}},
      {true, "optim.clip=0.5 optim.update=deferred", 2, 2, {.host_state = true}},
      {true, "data.micro_batch=1", 2, 2, {.host_state = true}},
      {true,
       "data.micro_batch=1 optim.update=speculative",
       2,
       2,
       {.host_state = true, .speculative = true}},
      {true,
       "transfer.grads=cpu_reduce optim.update=speculative",
       2,
       2,
       {.host_state = true, .cpu_reduce = true, .speculative = true}},
      {true,
       "optim.moments=bf16",
       2,
       2,
       {.host_state = true, .speculative = true, .moments = DTYPE_BF16}},
      {true, "optim.state=nvme", 2, 2, {.host_state = true, .speculative = true, .nvme_state = 1}},
      {true,
       "optim.state=nvme optim.state_share=0.25",
       2,
       2,
       {.host_state = true, .speculative = true, .nvme_state = 0.25}},
      {true, "tiers.resident=3", 2, 2, {.host_state = true, .speculative = true, .resident = 3}},
      {false, "tiers.resident=3", 2, 2, {.host_state = false}},
      {false, "shard.gathered=3", 2, 2, {.gathered = 3}},
      {false, "optim.clip=0", 2, 2, {.host_state = false}},
      {false, "transfer.params=full", 8, 2, {.host_state = false}},
      {false, "optim.moments=bf16", 1, 1, {.moments = DTYPE_BF16}},
      {false, "optim.moments=fp16", 1, 1, {.moments = DTYPE_F16}},
      {false, "compress.grads.codec=bf16", 2, 2, {.grads.codec = "bf16"}},
      {false, "compress.grads.codec=none", 2, 2, {.grads.codec = NULL}},
      {false,
       "compress.grads.codec=bf16 compress.grads.values=bf16 compress.feedback=fp32",
       2,
       2,
       {.grads = {.codec = "bf16", .values = "bf16"}, .feedback = "fp32"}},
      {false,
       "compress.grads.codec=bf16 compress.grads.units=[root=none,h.1?=topk+int8] "
       "tiers.residual=nvme compress.warmup=3",
       2,
       2,
       {.grads.codec = "bf16",
        .units = {2, {{"root", "none"}, {"h.1?", "topk+int8"}}},
        .residual = DECK_RESIDUAL_NVME}},
      {false,
       "compress.grads.block=512 compress.grads.levels=3 compress.grads.density=0.5 "
       "compress.grads.threshold=2 compress.grads.rank=4",
       2,
       2,
       {.grads = {.block = 512, .levels = 3, .rank = 4, .density = 0.5, .threshold = 2}}},
      {false,
       "compress.weights.codec=topk compress.weights.values=int8 compress.weights.block=512 "
       "compress.weights.density=0.5 compress.weights.delta=true",
       2,
       2,
       {.weights = {.codec = "topk", .values = "int8", .block = 512, .density = 0.5},
        .difference = true}},
      {false,
       "optim.lr_scale=[root=0.5,h.?=1e3]",
       2,
       2,
       {.lr_scale = {2, {{"root", "0.5"}, {"h.?", "1e3"}}}}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    struct deck_shape shape;
    struct deck_policy policy;
    const struct deck_policy *expected = &known[i].policy;
    char given[256];
    snprintf(given, sizeof given, "%s %s", known[i].on_host ? host : "", known[i].given);
    assert_int_equal(load(&deck, given), STATUS_OK);
    if (deck_resolve(&deck, known[i].ranks, known[i].local_ranks, &shape, &policy))
      fail_msg("%s: %s", given, status_text());
    assert_int_equal(policy.host_state, expected->host_state);
    assert_int_equal(policy.params_full, expected->params_full);
    assert_int_equal(policy.resident, expected->resident);
    assert_int_equal(policy.cpu_reduce, expected->cpu_reduce);
    assert_int_equal(policy.one_node, known[i].local_ranks >= shape.group);
    assert_int_equal(policy.immediate, expected->immediate);
    assert_int_equal(policy.speculative, expected->speculative);
    assert_codec(&policy.grads, &expected->grads);
    assert_codec(&policy.weights, &expected->weights);
    assert_int_equal(policy.difference, expected->difference);
    assert_string_equal(policy.feedback ? policy.feedback : "",
                        expected->feedback ? expected->feedback : "");
    assert_memory_equal(&policy.units, &expected->units, sizeof policy.units);
    assert_memory_equal(&policy.lr_scale, &expected->lr_scale, sizeof policy.lr_scale);
    assert_int_equal(policy.residual, expected->residual);
    assert_false(policy.warmup);
    assert_int_equal(policy.moments, expected->moments);
    assert_true(policy.nvme_state == expected->nvme_state);
    deck_destroy(&deck);
  }
}

TEST(test_resolve)
{
  static const struct {
    const char *given;
    int local_ranks;
    struct deck_shape shape; /* ranks, group, replicas, rank_batch, micro_batch, micros, sequence */
    bool each_micro;
    struct deck_pattern activations;
  } known[] = {
      {"data.batch=8", 1, {1, 1, 1, 8, 8, 1, 1024}, true, {0}},
      {"data.batch=12 data.micro_batch=2 data.sequence=64", 3, {3, 3, 1, 4, 2, 2, 64}, true, {0}},
      {"shard.strategy=shard_grad_op", 2, {4, 4, 1, 2, 2, 1, 1024}, true, {0}},
      {"shard.strategy=shard_optim", 2, {4, 4, 1, 2, 2, 1, 1024}, false, {0}},
      {"shard.strategy=no_shard", 2, {4, 1, 4, 2, 2, 1, 1024}, false, {0}},
      {"shard.strategy=no_shard shard.reduce=micro", 4, {4, 1, 4, 2, 2, 1, 1024}, true, {0}},
      {"shard.reduce=step", 2, {2, 2, 1, 4, 4, 1, 1024}, false, {0}},
      {"shard.strategy=hybrid_shard shard.group=2", 4, {8, 2, 4, 1, 1, 1, 1024}, true, {0}},
      {"shard.strategy=hybrid_shard shard.group=node", 4, {8, 4, 2, 1, 1, 1, 1024}, true, {0}},
      {"shard.strategy=hybrid_shard", 4, {8, 4, 2, 1, 1, 1, 1024}, true, {0}},
      /* one node: full_shard */
      {"shard.strategy=hybrid_shard", 4, {4, 4, 1, 2, 2, 1, 1024}, true, {0}},
      /* a rank a node: nothing is sharded */
      {"shard.strategy=hybrid_shard", 1, {2, 1, 2, 4, 4, 1, 1024}, true, {0}},
      {"shard.group=world", 2, {4, 4, 1, 2, 2, 1, 1024}, true, {0}},
      {"shard.strategy=hybrid_shard shard.group=4", 4, {4, 4, 1, 2, 2, 1, 1024}, true, {0}},
      /* one rank: anything goes */
      {"shard.strategy=hybrid_shard shard.group=2", 1, {1, 1, 1, 8, 8, 1, 1024}, true, {0}},
      {"tiers.activations=recompute", 1, {1, 1, 1, 8, 8, 1, 1024}, true, {1, {KEEP_INPUT}}},
      {"tiers.activations=recompute:3", 1, {1, 1, 1, 8, 8, 1, 1024}, true, {3, {KEEP_INPUT}}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    const struct deck_shape expected = known[i].shape;
    struct deck_shape shape;
    struct deck_policy policy;
    struct deck_pattern activations = known[i].activations;
    assert_int_equal(load(&deck, known[i].given), STATUS_OK);
    assert_int_equal(deck_resolve(&deck, expected.ranks, known[i].local_ranks, &shape, &policy),
                     STATUS_OK);
    assert_int_equal(shape.ranks, expected.ranks);
    assert_int_equal(shape.group, expected.group);
    assert_int_equal(shape.replicas, expected.replicas);
    assert_int_equal(shape.rank_batch, expected.rank_batch);
    assert_int_equal(shape.micro_batch, expected.micro_batch);
    assert_int_equal(shape.micros, expected.micros);
    assert_int_equal(shape.sequence, expected.sequence);
    if (activations.n == 0) /* unless said */
      activations.n = 1;
    check_pattern(&policy.activations, &activations);
    assert_int_equal(policy.reduce_every_micro, known[i].each_micro);
    assert_int_equal(policy.moments, DTYPE_F32);
    assert_false(policy.host_state || policy.params_full || policy.cpu_reduce || policy.immediate);
    assert_true(policy.nvme_state == 0);
    deck_destroy(&deck);
  }
}

/* A comma ends a plain word of YAML. */
TEST(test_patterns_are_echoed)
{
  struct deck deck, again;
  char *text;
  assert_int_equal(load(&deck, "tiers.activations=recompute,host:"), STATUS_USAGE);
  assert_int_equal(load(&deck, "tiers.activations=recompute,host"), STATUS_OK);
  assert_int_equal(options_print_yaml(deck.set, &text), STATUS_OK);
  assert_int_equal(deck_load_text(&again, "echo", text, strlen(text), 0, NULL), STATUS_OK);
  assert_string_equal(again.tiers.activations, "recompute,host");
  mem_free(text);
  deck_destroy(&deck);
  deck_destroy(&again);
}

TEST(test_does_not_fit)
{
  static const struct {
    const char *given;
    int ranks, local_ranks;
    const char *sentence;
  } known[] = {
      {"data.batch=64", 3, 3,
       "data.batch (command line) is 64 sequences, which 3 ranks cannot share evenly; use "
       "data.batch=63 or 66, or a number of ranks that divides 64"},
      {"", 9, 9,
       "data.batch (default) is 8 sequences, which 9 ranks cannot share evenly; use data.batch=9, "
       "or a number of ranks that divides 8"},
      {"data.batch=64", 128, 8,
       "data.batch (command line) is 64 sequences, which 128 ranks cannot share evenly; use "
       "data.batch=128, or a number of ranks that divides 64"},
      {"data.batch=10 data.micro_batch=4", 1, 1,
       "data.batch (command line) is 10 sequences, not a multiple of data.micro_batch (command "
       "line) = 4; use a batch of 8 or 12, or another "
       "micro-batch"},
      {"data.batch=12 data.micro_batch=4", 2, 2,
       "data.micro_batch (command line) is 4 sequences, but each of 2 ranks has 6 (data.batch "
       "(command line) = 12), which is not a multiple of that; use a micro-batch that divides 6, "
       "or a batch of 8 or 16"},
      {"shard.strategy=hybrid_shard shard.group=3", 8, 8,
       "shard.group (command line) is 3 ranks, which does not divide the 8 ranks of this run; "
       "start 6 or 9 ranks, or use a group that divides 8"},
      {"shard.strategy=hybrid_shard shard.group=16", 8, 8,
       "shard.group (command line) is 16 ranks, which does not divide the 8 ranks of this run; "
       "start 16 ranks, or use a group that divides 8"},
      {"shard.strategy=hybrid_shard shard.group=node", 8, 3,
       "shard.group (command line) is node, but 8 ranks do not fill nodes of 3; start the same "
       "number of ranks on every node"},
      {"shard.strategy=hybrid_shard", 8, 3,
       "shard.group (default) is auto, which means node here, but 8 ranks do not fill nodes of 3; "
       "start the same number of ranks on every node"},
      {"tiers.params=host tiers.optimizer=host transfer.params=full", 8, 4,
       "transfer.params (command line) is full, where the ranks of a shard group share the "
       "parameters in the memory of a node, but a group has 8 "
       "ranks and a node 4: set transfer.params=shard, or shard.strategy=hybrid_shard with "
       "shard.group=node"},
      {"tiers.params=host tiers.optimizer=host transfer.params=full shard.strategy=hybrid_shard "
       "shard.group=2 data.batch=6",
       6, 3,
       "transfer.params (command line) is full, where the ranks of a shard group share the "
       "parameters in the memory of a node, but a group has 2 "
       "ranks and a node 3: set transfer.params=shard, or shard.strategy=hybrid_shard with "
       "shard.group=node"},
      {"", 0, 1,
       "0 ranks with 1 on a node is not a job; both must be at least 1, and the first the larger"},
      {"", 2, 4,
       "2 ranks with 4 on a node is not a job; both must be at least 1, and the first the larger"},
      /* With a train.init, loading does not check. */
      {"train.init=folder optim.lr_scale=" UNITS_33, 1, 1,
       "optim.lr_scale (command line) has 33 items, and at most 32 are possible: use patterns"},
      {"train.init=folder compress.grads.units=" UNITS_33, 1, 1,
       "compress.grads.units (command line) has 33 items, and at most 32 are possible: use "
       "patterns"},
      {"train.init=folder shard.strategy=hybrid_shard shard.group=world", 2, 2,
       "shard.group (command line) is world, but shard.strategy (command line) is hybrid_shard, "
       "whose groups are smaller; leave it out, which means node, or set shard.group=N ranks"},
      {"train.init=folder shard.strategy=hybrid_shard shard.group=x", 3, 3,
       "shard.group (command line) must be auto, world, node or a number of ranks, not 'x'"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    struct deck_shape shape = {.ranks = -1};
    struct deck_policy policy = {.resident = -1};
    assert_int_equal(load(&deck, known[i].given), STATUS_OK);
    assert_int_equal(deck_resolve(&deck, known[i].ranks, known[i].local_ranks, &shape, &policy),
                     STATUS_USAGE);
    assert_string_equal(status_text(), known[i].sentence);
    assert_int_equal(shape.ranks, -1); /* outputs are set on success only */
    assert_int_equal(policy.resident, -1);
    deck_destroy(&deck);
  }
}

TEST(test_hash)
{
  struct deck deck;
  char base[17], other[17];
  static const char *const same[] = {
      "run.dir=elsewhere",         "run.steps=7",           "run.threads=2",
      "optim.lr=0.0006",           "train.trace=2,4",       "comm.timeout=5",
      "transfer.rate=2",           "tiers.nvme=/x",         "checkpoint.background=false",
      "topo.bind=false",           "topo.cores=[0-7,8-15]", "topo.controller=2",
      "compress.grads.codec=none", "run.counters=auto",     "tiers.working=keep"};
  static const char *const different[] = {"run.seed=2",
                                          "model.layers=3",
                                          "optim.lr=0.0007",
                                          "data.train=x",
                                          "shard.strategy=no_shard",
                                          "optim.no_decay=",
                                          "run.device=host",
                                          "run.compute=fp32",
                                          "comm.backend=mpi",
                                          "compress.grads.codec=bf16",
                                          "optim.moments=bf16",
                                          "tiers.activations=host",
                                          "transfer.params=full",
                                          "tiers.resident=1",
                                          "optim.lr_scale=[h.1=2]"};
  enum { SAME = sizeof same / sizeof same[0], DIFFERENT = sizeof different / sizeof different[0] };
  assert_int_equal(load(&deck, ""), STATUS_OK);
  deck_hash(&deck, base);
  deck_destroy(&deck);
  assert_int_equal(strspn(base, "0123456789abcdef"), 16);
  for (int i = 0; i < SAME + DIFFERENT; i++) {
    assert_int_equal(load(&deck, i < SAME ? same[i] : different[i - SAME]), STATUS_OK);
    deck_hash(&deck, other);
    deck_destroy(&deck);
    assert_int_equal(strcmp(base, other) == 0, i < SAME);
  }
}

/* GPT-2's parameters, from its published shapes. */
static int64_t parameters(const struct deck *deck)
{
  int64_t C = deck->model.width;
  return (deck->model.vocab + deck->model.context) * C +
         deck->model.layers * (12 * C * C + 13 * C) + 2 * C;
}

/* Each deck of inputs/ loads, runs on 1, 2, 4 and 8 ranks, survives its own echo, and states its
 * parameters rightly. */
static void check_input(const char *path)
{
  struct deck deck, again;
  struct deck_shape shape;
  struct deck_policy policy;
  char *text, hash[17], hash_again[17], content[8192], stated[64];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  content[fread(content, 1, sizeof content - 1, file)] = '\0';
  fclose(file);
  if (deck_load_text(&deck, path, content, strlen(content), 0, NULL))
    fail_msg("%s", status_text());
  for (int ranks = 1; ranks <= 8; ranks *= 2)
    if (deck_resolve(&deck, ranks, ranks, &shape, &policy))
      fail_msg("%s", status_text());
  assert_int_equal(options_print_yaml(deck.set, &text), STATUS_OK);
  if (deck_load_text(&again, "echo", text, strlen(text), 0, NULL))
    fail_msg("%s", status_text());
  deck_hash(&deck, hash);
  deck_hash(&again, hash_again);
  assert_string_equal(hash, hash_again);

  long long n = parameters(&deck);
  if (n >= 1000000)
    snprintf(stated, sizeof stated, "\n# %lld,%03lld,%03lld parameters", n / 1000000,
             n / 1000 % 1000, n % 1000);
  else
    snprintf(stated, sizeof stated, "\n# %lld,%03lld parameters", n / 1000, n % 1000);
  if (strcmp(deck.model.arch, "gpt2") == 0 &&
      !strstr(content, stated)) /* the others': tests/cli/decks.sh */
    fail_msg("%s does not say '%s'", path, stated + 1);
  mem_free(text);
  deck_destroy(&deck);
  deck_destroy(&again);
}

TEST(test_inputs)
{
  const char *top = getenv("top_srcdir");
  char folder[512], path[1024];
  int n = 0;
  snprintf(folder, sizeof folder, "%s/inputs", top ? top : ".");
  DIR *inputs = opendir(folder);
  assert_non_null(inputs);
  for (struct dirent *entry = readdir(inputs); entry; entry = readdir(inputs)) {
    size_t length = strlen(entry->d_name);
    if (length < 5 || strcmp(entry->d_name + length - 5, ".yaml") != 0)
      continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    check_input(path);
    n++;
  }
  closedir(inputs);
  assert_true(n >= 5);
}

/* Whether a text has an item for a choice. */
static bool lists(const char *text, const char *choice)
{
  char item[64];
  snprintf(item, sizeof item, "\n  %s  ", choice);
  return strstr(text, item) != NULL;
}

/* A row without a text, an unexplained choice, a reversed range or a split section would make the
 * echo or the help wrong. In help the name takes 28 of 80 columns. */
TEST(test_table)
{
  for (const struct option *option = deck_table; option->name; option++) {
    assert_true(option->text && *option->text >= 'A' && *option->text <= 'Z');
    assert_true(prose_sentence(option->text) <= 80 - 28);
    for (int i = 0; option->type == OPTION_CHOICE && option->choices[i]; i++)
      assert_true(lists(option->text, option->choices[i]));
    assert_non_null(option->value);
    assert_true(option->least <= option->most);
    assert_int_equal(option->type == OPTION_CHOICE,
                     option->choices && option->type != OPTION_STRINGS);
    assert_true(option->type != OPTION_INTS ||
                (option->count > 0 && option->count <= OPTION_MOST_INTS));
    size_t section = strcspn(option->name, ".");
    bool left = false;
    for (const struct option *later = option + 1; later->name; later++) {
      bool inside = strncmp(later->name, option->name, section + 1) == 0;
      assert_string_not_equal(later->name, option->name);
      assert_false(left && inside);
      left = left || !inside;
    }
  }
}

/* Each alias stands for one key, which exists. Oracle: the names of other trainers. */
TEST(test_aliases)
{
  static const struct {
    const char *given, *sentence;
  } known[] = {
      {"optim.learning_rate=1", "command line: unknown key 'optim.learning_rate': use optim.lr"},
      {"hidden-size=1", "command line: unknown key 'hidden-size': use model.width"},
      {"BF16=true", "command line: unknown key 'BF16': use run.compute"},
      {"gradient_checkpointing=true", "command line: unknown key 'gradient_checkpointing': use "
                                      "tiers.activations (set it to recompute)"},
      {"logging_steps=1", "command line: unknown key 'logging_steps': results.jsonl has every "
                          "step, so leave it out"},
      {"resume_from_checkpoint=x",
       "command line: unknown key 'resume_from_checkpoint': use sluice train DECK --resume auto"},
  };
  struct deck deck;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    assert_int_equal(load(&deck, known[i].given), STATUS_USAGE);
    assert_string_equal(status_text(), known[i].sentence);
  }
  char all[8192] = " ", name[64];
  for (const struct option_alias *alias = deck_aliases; alias->names; alias++) {
    assert_true(alias->key ? options_has(deck_table, alias->key) : alias->note != NULL);
    for (const char *word = alias->names; *word; word += strspn(word, " ")) {
      snprintf(name, sizeof name, " %.*s ", (int)strcspn(word, " "), word);
      assert_null(strstr(all, name));
      assert_true(strlen(all) + strlen(name) < sizeof all);
      strcat(all, name + 1);
      word += strcspn(word, " ");
    }
  }
}

/* "a.b.c" and "x": "{a: {b: {c: x}}}" */
static void nest(const char *name, const char *value, char *out, size_t size)
{
  int depth = 1;
  append_text(out, size, "{");
  for (; *name; name++) {
    append_text(out, size, *name == '.' ? ": {" : "%c", *name);
    depth += *name == '.';
  }
  append_text(out, size, ": %s%.*s", value, depth, "}}}}");
}

/* Each key has an example. Oracle: the parser, which takes it as a value of the key, on the command
 * line and in a deck. */
TEST(test_examples)
{
  for (const struct option *option = deck_table; option->name; option++) {
    struct deck deck = {0};
    char example[100], assignment[200], text[300] = "";
    options_print_example(option, example, sizeof example);
    snprintf(assignment, sizeof assignment, "%s=%s", option->name, example);
    assert_int_equal(options_create(deck_table, &deck, &deck.set), STATUS_OK);
    if (!*example || options_assign(deck.set, assignment))
      fail_msg("%s: %s", assignment, status_text());
    nest(option->name, example, text, sizeof text);
    if (options_read_text(deck.set, "deck", text, strlen(text)))
      fail_msg("%s: %s", text, status_text());
    deck_destroy(&deck);
  }
}

static void load_yaml(struct deck *deck, const char *yaml, char *typed)
{
  if (deck_load_text(deck, "file", yaml, strlen(yaml), *typed ? 1 : 0, (char *const[]){typed}))
    fail_msg("%s with %s: %s", yaml, typed, status_text());
}

static void check_values(const struct deck *deck, const char *expected)
{
  char copy[512], *rest, *text;
  snprintf(copy, sizeof copy, "%s", expected);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(word, '=');
    *value++ = 0;
    assert_int_equal(options_print_named(deck->set, word, &text), STATUS_OK);
    if (strcmp(text, value) != 0)
      fail_msg("%s is %s, not %s", word, text, value);
    mem_free(text);
  }
}

/* A preset stands for its keys. A key that is set next to it wins, and a typed preset replaces the
 * keys of a file. Oracle: the deck that says the same by single keys. */
TEST(test_presets)
{
  static const struct {
    const char *yaml, *typed, *same;
  } known[] = {
      {"", "tiers.preset=device", "tiers.params=device"},
      {"", "tiers.preset=recompute", "tiers.activations=recompute"},
      {"", "tiers.preset=offload", "tiers.params=host tiers.optimizer=host tiers.activations=host"},
      {"", "tiers.preset=offload_resident",
       "tiers.params=host tiers.optimizer=host tiers.activations=host tiers.resident=3"},
      {"", "tiers.preset=offload_nvme",
       "tiers.params=host tiers.optimizer=host tiers.activations=nvme optim.state=nvme"},
      {"tiers: {preset: offload, activations: keep}", "",
       "tiers.params=host tiers.optimizer=host tiers.activations=keep"},
      {"tiers: {preset: offload}", "tiers.activations=recompute",
       "tiers.params=host tiers.optimizer=host tiers.activations=recompute"},
      {"tiers: {activations: keep}", "tiers.preset=recompute", "tiers.activations=recompute"},
      {"tiers: {params: host, optimizer: host}\noptim: {state: nvme, state_share: 0.5}",
       "tiers.preset=recompute", "tiers.activations=recompute"},
      {"tiers: {preset: offload_nvme}", "tiers.preset=device", "tiers.params=device"},
      {"tiers: {activations: recompute}", "tiers.preset=none", "tiers.activations=recompute"}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck, same, again;
    char typed[48], hash[17], hash_same[17], hash_again[17], *text;
    snprintf(typed, sizeof typed, "%s", known[i].typed);
    load_yaml(&deck, known[i].yaml, typed);
    assert_int_equal(load(&same, known[i].same), STATUS_OK);
    check_values(&deck, known[i].same);
    assert_int_equal(options_print_yaml(deck.set, &text), STATUS_OK);
    load_yaml(&again, text, (char[]){""}); /* the saved deck is spelled out */
    check_values(&again, known[i].same);
    deck_hash(&deck, hash);
    deck_hash(&same, hash_same);
    deck_hash(&again, hash_again);
    assert_string_equal(hash, hash_same);
    assert_string_equal(hash, hash_again);
    mem_free(text);
    deck_destroy(&deck);
    deck_destroy(&same);
    deck_destroy(&again);
  }
}

/* Oracle: what the deck would be, had the assignments been typed. */
TEST(test_variants)
{
  static const struct {
    const char *set, *changes, *values; /* NULL: the keys do not go together */
  } known[] = {{"", "", "tiers.activations=recompute tiers.resident=2"},
               {"tiers.activations=recompute data.micro_batch=1", "data.micro_batch=1",
                "tiers.activations=recompute data.micro_batch=1"},
               {"tiers.preset=device", "tiers.preset=device",
                "tiers.params=device tiers.activations=keep tiers.resident=0"},
               {"tiers.params=device", NULL, NULL},
               {"tiers.wrong=1", NULL, NULL}};
  struct deck deck, other;
  char changes[64];
  assert_int_equal(
      load(&deck,
           "tiers.params=host tiers.optimizer=host tiers.resident=2 tiers.activations=recompute "
           "train.freeze=[a\\b,\"c,d\"] optim.betas=[0.8,0.9]"),
      STATUS_OK);
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    const enum status status = deck_vary(&deck, known[i].set, &other, changes, sizeof changes);
    assert_int_equal(status, known[i].changes ? STATUS_OK : STATUS_USAGE);
    if (status)
      continue;
    assert_string_equal(changes, known[i].changes);
    assert_int_equal(other.train.freeze.n, 2);
    assert_string_equal(other.train.freeze.item[0], "a\\b");
    assert_string_equal(other.train.freeze.item[1], "c,d");
    assert_string_equal(options_where(other.set, "train.freeze"), OPTIONS_COMMAND_LINE);
    assert_string_equal(options_where(other.set, "model.width"), "default");
    assert_true(other.optim.betas[0] == 0.8 && other.optim.betas[1] == 0.9);
    check_values(&other, known[i].values);
    deck_destroy(&other);
  }
  deck_destroy(&deck);
}

int main(void)
{
  int failed = test_run(NULL, NULL);
  return failed || mem_usage(MEM_META).bytes != 0; /* nothing is left behind */
}
