/* `sluice plan`: builds and verifies the plan of one rank without any peer or GPU. */
#include "cmd/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "job/rates.h"
#include "layout/mesh.h"
#include "model/model.h"

struct values {
  int64_t ranks, rank, threads, local_ranks, documents;
  int mode;
  bool list, json;
  char *gpu, *host, *nvme, *follow;
  struct option_strings rates; /* files */
  struct plan_rates measured;  /* the values of these files */
};

static const char *const modes[] = {"train", "eval", "generate", NULL};

// clang-format off: one row an option
static const struct option table[] = {
    {"ranks", OPTION_INT, AT(ranks), "1", .least = 1, .most = 1e6,
     .text = "Number of ranks to plan for."},
    {"local_ranks", OPTION_INT, AT(local_ranks), "8", .least = 1, .most = 1e4,
     .text = "Ranks per node. Used for shard.group=node, for host= and for the bytes sent between "
             "nodes."},
    {"gpu", OPTION_STRING, AT(gpu), "",
     .text = "Say whether a rank fits on this GPU. One of " FIT_GPUS ", or a size such as 64GiB."},
    {"host", OPTION_STRING, AT(host), "",
     .text = "Say whether the ranks of a node fit in this memory. A size such as 512GiB. With gpu= "
             "it covers loading and saving."},
    {"nvme", OPTION_STRING, AT(nvme), "",
     .text = "Say whether a node's data on NVMe fit on this disk. A size such as 2TiB."},
    {"rates", OPTION_STRINGS, AT(rates), "[]", .path = true,
     .text = "Files of rates; their keys: sluice bench rates --help. Later files take precedence. "
             "With gemm, the rate of products, the time of a step is predicted."},
    MADE_DOCUMENTS(documents),
    {"list", OPTION_BOOL, AT(list), "false", .text = "Print the instructions."},
    {"follow", OPTION_STRING, AT(follow), "",
     .text = "Print each instruction that uses this buffer, such as grads.h.3."},
    {"json", OPTION_BOOL, AT(json), "false",
     .text = "Print JSON, without the instructions. sluice plan --help lists its members."},
    {"mode", OPTION_CHOICE, AT(mode), "train", .choices = modes,
     .text = "Which plan: train, eval or generate."},
    {"rank", OPTION_INT, AT(rank), "0", .least = 0, .most = 1e6, .rare = true,
     .text = "Rank whose plan is printed."},
    {"threads", OPTION_INT, AT(threads), "0", .least = 0, .most = 4096, .rare = true,
     .text = "Threads per rank, for workspace sizes. 0: run.threads of the deck, or 1."},
    {.name = NULL},
};
// clang-format on

static int ranks_on_node(const struct values *values)
{
  return (int)(values->local_ranks < values->ranks ? values->local_ranks : values->ranks);
}

/* The device that the plan is for. */
struct target {
  struct job_place place;
  struct device_model model;
  struct device *device; /* that GPU, or NULL */
};

/* If a user names a GPU, the plan is for a GPU, on any machine. */
static enum status take_gpu(const struct values *values, struct deck *deck)
{
  if (!*values->gpu || deck->run.device == DECK_DEVICE_CUDA)
    return STATUS_OK;
  if (deck->run.device == DECK_DEVICE_HOST)
    return status_usage(
        "gpu=%s, but run.device (%s) is host: leave out one of them; host= says what "
        "ranks on hosts need",
        values->gpu, options_where(deck->set, "run.device"));
  return options_resolve_from(deck->set, "gpu=", "run.device", "cuda");
}

static enum status create_target(const struct values *values, const struct deck *deck,
                                 const struct fit_room *room, struct target *out)
{
  int gpus = 0;
  enum status status = job_count_gpus(deck, &gpus);
  const int seen = gpus == 0 && deck->run.device == DECK_DEVICE_CUDA ? 1 : gpus;
  status = status
      ?: job_choose_place(deck, (int)values->ranks, 1, seen, &out->place)
      ?: device_model_find(out->place.device, out->place.compute, &out->model);
  if (!status)
    fit_describe(room, &out->model.gpu);
  /* gpu=NAME describes a GPU, whatever this machine has. */
  if (status || gpus == 0 || out->model.host_memory || room->gpu)
    return status;
  status = device_create(out->place.device, 0, out->place.compute, &out->device);
  if (!status)
    out->model = out->device->model;
  return status;
}

/* gpu= may name another GPU than that of this machine. */
static enum status choose_fp8(const struct values *values, const struct deck *deck,
                              const struct fit_room *room, struct target *target)
{
  bool tensor = false;
  if (deck->run.compute != DECK_COMPUTE_FP8)
    return STATUS_OK;
  const enum status status =
      room->gpu ? job_fp8_scales(deck, device_cuda_fp8(room->gpu->major, room->gpu->minor),
                                 values->gpu, &tensor)
                : job_fp8_scales(deck, target->model.fp8,
                                 target->device ? target->device->product : target->place.device,
                                 &tensor);
  if (tensor)
    target->model.fp8 = FP8_SCALES_TENSOR;
  return status;
}

/* The purposes of a plan. */
static const enum job_use uses[] = {
    [PLAN_TRAIN] = JOB_TRAIN, [PLAN_EVAL] = JOB_TRAIN_AND_EVAL, [PLAN_GENERATE] = JOB_GENERATE};

static enum status make_input(const struct values *values, const struct deck *deck,
                              enum plan_mode mode, const struct model *model,
                              const struct target *target, struct plan_input *out)
{
  *out = (struct plan_input){.mode = mode,
                             .rank = (int)values->rank,
                             .ranks = (int)values->ranks,
                             .model = model,
                             .device = &target->model,
                             .threads = (int)(values->threads ?: deck->run.threads ?: 1)};
  return job_shape(deck, uses[mode], ranks_on_node(values), out);
}

/* Ranks differ only in the part that they own, so two of them represent all. */
static enum status check_ranks_agree(const struct plan *plan, const struct plan_input *input)
{
  struct plan_input other = *input;
  struct plan *peer = NULL;
  if (input->ranks == 1)
    return STATUS_OK;
  other.rank = (input->rank + 1) % input->ranks;
  enum status status = plan_build(&other, &peer);
  if (status)
    return status;
  status = plan_place(peer);
  const bool same = plan_collective_hash(plan) == plan_collective_hash(peer);
  plan_destroy(peer);
  return same || status
             ? status
             : status_set(STATUS_PLAN, "ranks %d and %d would issue different collectives",
                          input->rank, other.rank);
}

static void print_warmup(const struct deck *deck, const struct plan *plan)
{
  printf("\nthe warm-up of compress.warmup=%lld updates comes before this plan; it sends gradients "
         "without a codec and needs %s of device memory and %s of host memory\n",
         (long long)deck->compress.warmup,
         mem_amount((double)plan_tier_bytes(plan, TIER_DEVICE)).text,
         mem_amount((double)plan_tier_bytes(plan, TIER_HOST)).text);
}

/* 8030261248 as "8,030,261,248". */
struct count {
  char text[32];
};
static struct count with_commas(int64_t n)
{
  struct count count = {""};
  if (n >= 1000)
    count = with_commas(n / 1000);
  append_text(count.text, sizeof count.text, n < 1000 ? "%lld" : ",%03lld", (long long)(n % 1000));
  return count;
}

static void print_head(const struct plan_facts *facts)
{
  const struct plan_input *input = &facts->job.plans[0]->input;
  const struct mesh *mesh = &facts->job.plans[0]->mesh;
  const int replicas = mesh_ranks(mesh, MESH_REPLICA);
  const struct model *model = input->model;
  char groups[48] = "";
  if (input->strategy == STRATEGY_HYBRID_SHARD)
    snprintf(groups, sizeof groups, " in %d group%s of %d", replicas, plural(replicas),
             mesh_ranks(mesh, MESH_SHARD));
  printf("\n%s, %s parameters (%s trained, %s frozen), %d rank%s, %s%s\n", model->config.arch,
         with_commas(model->parameters).text, with_commas(model->parameters - model->frozen).text,
         with_commas(model->frozen).text, input->ranks, plural(input->ranks),
         deck_strategy_name(input->strategy), groups);
  printf("device %s, computing in %s with gradients in %s and masters in fp32\n", facts->device,
         facts->precision, dtype_name(input->device->gradient));
}

static void print_traffic(const struct plan_facts *facts)
{
  const struct plan *plan = facts->job.plans[0];
  const int local = facts->links.local_ranks, nodes = traffic_nodes(plan->input.ranks, local);
  const struct traffic_bytes traffic = plan_traffic(plan, &facts->links);
  printf(
      "\neach of %d nodes of %d rank%s sends %s to others in a step: parameters %s, gradients %s, "
      "replicas %s; %s\n",
      nodes, local, plural(local), mem_amount((double)(traffic.all / nodes)).text,
      mem_amount((double)(traffic.gather / nodes)).text,
      mem_amount((double)(traffic.reduce / nodes)).text,
      mem_amount((double)(traffic.replicas / nodes)).text,
      plan_spans_nodes(plan) ? "all-gathers have two hops"
      : facts->links.ring    ? "all-gathers go round in a ring"
                             : "in an all-gather each member sends its part to every other one");
}

static void print_messages(const struct plan *plan)
{
  const struct message_count messages = plan_messages(plan);
  char scales[80] = "";
  if (messages.scales > 0)
    snprintf(scales, sizeof scales, ", %s of them for scales of fp8",
             with_commas(messages.scales).text);
  printf("\na rank sends %s messages in a step, as a member of %d group%s%s\n",
         with_commas(messages.all).text, messages.groups, plural(messages.groups), scales);
}

/* The verdict comes first, then the time of a step, then details. */
static enum status print_text(const struct values *values, const struct plan_facts *facts,
                              bool *fits)
{
  static const struct plan_rates none;
  const struct search *job = &facts->job;
  const struct plan *plan = job->plans[0];
  enum status status = fit_print(facts, fits);
  if (!status && facts->rates)
    status = forecast_print_step(facts);
  else if (!status && memcmp(&values->measured, &none, sizeof none) != 0)
    printf("\nno forecast: the rates lack gemm, the rate of matrix products\n");
  if (status)
    return status;
  print_head(facts);
  putchar('\n');
  plan_print_memory(plan, stdout);
  printf(
      "\nverified: %d instructions, every read after its write, no bytes reused in flight, ranks "
      "agree on %016llx\n",
      plan->n, (unsigned long long)plan_collective_hash(plan));
  if (job->plans[job->n - 1]->input.policy.warmup)
    print_warmup(job->deck, job->plans[job->n - 1]);
  if (job->links)
    print_traffic(facts);
  if (plan->input.ranks > 1)
    print_messages(plan);
  if (facts->rates)
    status = forecast_print(facts);
  fit_print_settings(facts);
  if (!status && values->list) {
    putchar('\n');
    plan_print(plan, stdout);
  }
  if (!status && *values->follow) {
    putchar('\n');
    status = plan_print_uses(plan, values->follow, stdout);
  }
  return status;
}

static enum status print_facts(const struct values *values, struct plan_facts *facts, bool *fits)
{
  job_warn_without_effect(facts->job.deck, facts->job.use, 1, facts->job.plans);
  return values->json ? plan_json_print(facts, fits) : print_text(values, facts, fits);
}

/* A plan, and those of evaluation and warm-up. */
struct plans {
  int n;
  struct plan *of[3];
};

static void destroy_plans(struct plans *plans)
{
  for (int i = 0; i < plans->n; i++)
    plan_destroy(plans->of[i]);
  *plans = (struct plans){0};
}

static enum status create_plans(const struct values *values, const struct deck *deck,
                                const struct target *target, const struct plan_input *input,
                                struct plans *out)
{
  struct plan_input eval, warmup = *input;
  const bool trains = input->mode == PLAN_TRAIN;
  *out = (struct plans){.n = 1};
  enum status status = plan_create(input, &out->of[0]);
  if (!status && trains && job_training(deck) == JOB_TRAIN_AND_EVAL) {
    status = make_input(values, deck, PLAN_EVAL, input->model, target, &eval);
    status = status ?: plan_create(&eval, &out->of[out->n++]);
  }
  if (!status && trains && deck->compress.warmup > 0) {
    warmup.policy.warmup = true;
    status = plan_create(&warmup, &out->of[out->n++]);
  }
  return status;
}

struct freed {
  char text[1024];
};

/* Assignments that free every key whose value the program may choose. "": all are free. */
static enum status free_all(const struct deck *deck, struct freed *out)
{
  enum status status = STATUS_OK;
  *out->text = '\0';
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!option->chosen || options_is_free(deck->set, option))
      continue;
    status = options_print_value(option, deck, &value);
    if (!status && search_may_choose(option->name, value))
      append_text(out->text, sizeof out->text, "%s%s=auto", *out->text ? " " : "", option->name);
    mem_free(value);
  }
  return status;
}

/* The settings that training would choose, and the best of all. */
static enum status choose(const struct plan_facts *facts, struct chosen *chosen,
                          struct settings *all)
{
  const struct search *job = &facts->job;
  const struct plan_rates nominal = choose_nominal_rates(
      job->plans[0]->input.device, job->plans[0]->input.ranks, job->local_ranks);
  struct search described = *job, measured = *job;
  struct freed freed;
  struct chosen of_all = {0};
  char changes[sizeof freed.text];
  struct deck deck;
  described.rates = &nominal;
  described.rough = measured.rough = true;
  enum status status =
      free_all(job->deck, &freed) ?: choose_settings(&described, &measured, chosen);
  if (status)
    return status;
  *all = chosen->best;
  if (!*freed.text)
    return STATUS_OK;
  status = deck_vary(job->deck, freed.text, &deck, changes, sizeof changes);
  if (status) /* other keys of the deck need the values of its keys */
    return status == STATUS_USAGE ? STATUS_OK : status;
  described.deck = measured.deck = &deck;
  status = choose_settings(&described, &measured, &of_all);
  *all = of_all.best;
  deck_destroy(&deck);
  return status;
}

/* Makes the plans with the values that training would choose for free keys. */
static enum status choose_and_plan(const struct values *values, const struct target *target,
                                   struct deck *deck, struct plan_input *input, struct plans *plans,
                                   struct plan_facts *facts)
{
  struct chosen chosen = {.text = ""};
  enum status status = choose(facts, &chosen, &facts->other) ?: choose_apply(chosen.text, deck);
  if (status)
    return status;
  facts->now = chosen.best.best;
  destroy_plans(plans);
  status = make_input(values, deck, input->mode, input->model, target, input)
               ?: create_plans(values, deck, target, input, plans);
  facts->job.n = plans->n;
  return status;
}

static enum status print_plan(const struct values *values, struct deck *deck,
                              const struct target *target, struct plan_input *input,
                              const struct fit_room *room, bool *fits)
{
  struct plans plans;
  const bool trains = input->mode == PLAN_TRAIN;
  enum status status = create_plans(values, deck, target, input, &plans);
  struct plan_facts facts = {.job = {.deck = deck,
                                     .use = uses[input->mode],
                                     .local_ranks = ranks_on_node(values),
                                     .node_ranks = (int)values->local_ranks,
                                     .n = plans.n,
                                     .plans = (const struct plan *const *)plans.of,
                                     .judge = fit_judge,
                                     .arg = room},
                             .room = room,
                             .rates = values->measured.gemm_flops > 0 ? &values->measured : NULL,
                             .links = {.local_ranks = ranks_on_node(values),
                                       .ring = strcmp(target->place.transport, "mpi") != 0},
                             .device = target->place.device,
                             .precision = target->place.precision,
                             .estimated = !target->device && !target->model.host_memory};
  facts.job.rates = facts.rates;
  if (trains && traffic_nodes(input->ranks, facts.job.local_ranks) > 1)
    facts.job.links = &facts.links;
  if (!status && trains && (facts.rates || fit_is_sized(room)))
    status = choose_and_plan(values, target, deck, input, &plans, &facts);
  status = status ?: check_ranks_agree(plans.of[0], input) ?: print_facts(values, &facts, fits);
  destroy_plans(&plans);
  return status;
}

static enum status check_values(const struct values *values, struct fit_room *room)
{
  *room = (struct fit_room){0};
  if (values->rank >= values->ranks)
    return status_usage("rank=%lld: ranks are 0 to %lld", (long long)values->rank,
                        (long long)values->ranks - 1);
  return fit_gpu(values->gpu, room)
             ?: fit_size("host", values->host, &room->host_bytes)
             ?: fit_size("nvme", values->nvme, &room->nvme_bytes);
}

static enum status look_at_data(struct comm *comm, int64_t documents, struct deck *deck)
{
  struct token_set *made = NULL;
  const enum status status = (documents > 0 ? job_make_data(deck, documents, &made) : STATUS_OK)
                                 ?: job_look_at_data(comm, deck, made);
  token_set_close(made);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  struct values *values = arguments->values;
  struct deck deck = {0};
  struct target target = {0};
  struct model *model = NULL;
  struct plan_input input;
  struct fit_room room;
  bool fits = true;
  enum status status = check_values(values, &room)
      ?: job_rates_read(&values->rates, &values->measured)
      ?: deck_open(arguments, arguments->word[0], &deck)
      ?: look_at_data(arguments->comm, values->documents, &deck)
      ?: take_gpu(values, &deck)
      ?: create_target(values, &deck, &room, &target)
      ?: choose_fp8(values, &deck, &room, &target)
      ?: job_model(&deck, target.place.compute, (int)values->ranks, &model)
      ?: make_input(values, &deck, (enum plan_mode)values->mode, model, &target, &input)
      ?: print_plan(values, &deck, &target, &input, &room, &fits);
  *arguments->exit_code = !status && !fits;
  model_destroy(model);
  device_destroy(target.device);
  deck_destroy(&deck);
  return status;
}

const struct command command_plan = {
    .name = "plan",
    .usage = "DECK [--ranks P] [--gpu NAME|SIZE] [key=value ...]",
    .summary = "say whether a deck fits, and verify the schedule of a step",
    .text =
        "Needs neither MPI nor the memory of the model. If the deck's data are here, their "
        "documents "
        "tell whether sequences are packed, and how much attention costs. The first line says "
        "whether the plan fits "
        "into gpu=, host= and nvme=. The table below it shows what a rank needs of its GPU and "
        "what the ranks of a node need of host memory and NVMe, in GiB, and what is left. If the "
        "plan does not fit, the exit code is 1, and the settings that would fit come next. With "
        "rates, the predicted time of a step follows. Then come details: the memory by tier and "
        "purpose, the result of the verification, and other settings. With --list, the "
        "instructions and their waits come last. With --follow BUFFER, only those that use the "
        "buffer.\n"
        "\n"
        "If the plan does not fit, the last setting that would fit is the smallest number of "
        "ranks, or of nodes. If it fits, the second line names the next faster setting that fits "
        "too. Without rates it is one that spends memory to save work.\n"
        "\n"
        "The last table shows what other settings would do, one change per row: memory, whether "
        "they fit, with rates the predicted step, and with several nodes the bytes that a node "
        "sends to others. Settings that fit come first, the fastest one at the top. Settings that "
        "change the results are left out. With rates and several nodes another table shows the "
        "efficiency with more nodes. With a codec of gradients the links are named on which it "
        "makes the step shorter.\n"
        "\n"
        "With compress.warmup the plan is that of steps after the warm-up. The memory that is "
        "compared with gpu=, host= and nvme= holds both plans, and with eval.every or "
        "train.objective=dpo also that of evaluation.\n"
        "\n"
        "A part of a GPU is for the CUDA context, libraries and NCCL. The table names it and does "
        "not count it as room for the plan. gpu=SIZE is the memory that programs can use.\n"
        "\n"
        "gpu= and run.device=cuda plan for GPUs even if this machine has none. Without the name "
        "of a GPU they assume an H100's kernels.\n"
        "\n"
        "Rows of the memory table. Persistent bytes stay from step to step. Transient bytes are "
        "those in use when the shared arena is fullest.\n"
        "  parameters  this rank's share of the fp32 masters\n"
        "  gathered parameters  whole units in the compute type or as codes of fp8, while they "
        "are in use\n"
        "  working copy  this rank's share in the compute type, in addition to the masters; whole "
        "units with compress.weights.delta\n"
        "  moments  the two moments of AdamW\n"
        "  residuals  what messages of gradients have lost\n"
        "  gradients  this rank's share of the reduced gradients; of two steps with "
        "optim.update=speculative\n"
        "  whole-unit gradients  gradients of a unit before the reduction\n"
        "  staging  messages and receive buffers of reductions, messages of parameters, scales "
        "and codes of fp8, and moments on their way to and from the disk\n"
        "  landed gradients  gradients on the host, not yet reduced or not yet added up\n"
        "  activations  kept by blocks for the backward pass\n"
        "  residual stream  the output of a block and its gradient\n"
        "  work  scratch memory of one operation\n"
        "  tokens  of this step and of the next one\n"
        "  keys and values  of the tokens generated so far\n"
        "  results  loss, gradient norm and values derived from them\n"
        "  lost to packing  gaps between transient buffers\n"
        "\n"
        "JSON (--json), with sizes in bytes, has ranks, rank, strategy, group (ranks in a shard "
        "group), micro_batches, micro_batch, sequence, device, compute, estimated (this machine "
        "has no such device), instructions, hash (equal on all ranks) and:\n"
        "  model  arch, parameters, frozen\n"
        "  memory  objects with tier, purpose, persistent and transient\n"
        "  messages  per step, of a rank: all, scales (of fp8), and groups whose members send "
        "them\n"
        "  node_sends  per step, of a node to others: nodes, parameters, gradients, replicas, all\n"
        "  fit  device (of a rank), host and nvme (of a node), each with need; with gpu=, host= "
        "or nvme= also have, left (have - need) and fits; device also reserve, the bytes of a GPU "
        "that have lacks; fits\n"
        "  forecast  with rates: step_s, exposed_comm_s, exposed_copy_s, exposed_update_s, "
        "exposed_disk_s, and busy_s per lane\n"
        "  settings  with gpu=, host=, nvme=, rates or several nodes: objects with changes (as "
        "they are typed), device, host, nvme, node_sends, step_s and fits",
    .examples = "  sluice plan inputs/gpt2-62m.yaml --ranks 4\n"
                "  sluice plan inputs/qwen2.5-7b.yaml --ranks 8 gpu=h100\n"
                "  sluice plan inputs/qwen2.5-7b.yaml --ranks 16 gpu=h200 rates=rates.yaml\n",
    .options = table,
    .exits = "0 done, 1 it does not fit, 2 usage error",
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .lists_keys = true,
    .words = {1, 1},
    .run = run,
};
