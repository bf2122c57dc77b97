/* The architectures that the decoder computes: their features and their parameters, under Hugging
 * Face's names. Rows lie in a unit's flat buffer in the order of enum root_row, head_row and
 * block_row. A row without a name is a parameter that the family does not have. */
#include "model/decoder.h"

#include <string.h>

#include "base/append.h"

/* clang-format off */
/* GPT2LMHeadModel. Its Conv1D keeps a matrix as [in, out], and Q_WEIGHT holds q, k and v. */
static const struct family gpt2_family = {
    .block_prefix = "transformer.h.",
    .root = {
        [ROOT_TOKENS]     = {"transformer.wte.weight", PARAM_EMBEDDING, INIT_NORMAL, {DIM_V, DIM_C},
                             .padded = true},
        [ROOT_POSITIONS]  = {"transformer.wpe.weight", PARAM_EMBEDDING, INIT_NORMAL,
                             {DIM_T, DIM_C}},
        [ROOT_NORM]       = {"transformer.ln_f.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [ROOT_NORM_BIAS]  = {"transformer.ln_f.bias", PARAM_NORM, INIT_ZERO, {DIM_C}},
    },
    .block = {
        [NORM_1]          = {"ln_1.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [NORM_1_BIAS]     = {"ln_1.bias", PARAM_NORM, INIT_ZERO, {DIM_C}},
        [Q_WEIGHT]        = {"attn.c_attn.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_C, DIM_QKV}},
        [Q_BIAS]          = {"attn.c_attn.bias", PARAM_BIAS, INIT_ZERO, {DIM_QKV}},
        [PROJECTION]      = {"attn.c_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_HD, DIM_C},
                             .residual = true},
        [PROJECTION_BIAS] = {"attn.c_proj.bias", PARAM_BIAS, INIT_ZERO, {DIM_C}},
        [NORM_2]          = {"ln_2.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [NORM_2_BIAS]     = {"ln_2.bias", PARAM_NORM, INIT_ZERO, {DIM_C}},
        [UP]              = {"mlp.c_fc.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_C, DIM_F}},
        [UP_BIAS]         = {"mlp.c_fc.bias", PARAM_BIAS, INIT_ZERO, {DIM_F}},
        [DOWN]            = {"mlp.c_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_F, DIM_C},
                             .residual = true},
        [DOWN_BIAS]       = {"mlp.c_proj.bias", PARAM_BIAS, INIT_ZERO, {DIM_C}},
    },
};

/* LlamaForCausalLM and its relatives. */
static const struct family llama_family = {
    .block_prefix = "model.layers.",
    .root = {
        [ROOT_TOKENS] = {"model.embed_tokens.weight", PARAM_EMBEDDING, INIT_NORMAL, {DIM_V, DIM_C},
                         .padded = true},
        [ROOT_NORM]   = {"model.norm.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
    },
    .head = {
        [HEAD_NORM]   = {"model.norm.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [HEAD_WEIGHT] = {"lm_head.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_V, DIM_C},
                         .padded = true},
    },
    .block = {
        [NORM_1]      = {"input_layernorm.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [Q_WEIGHT]    = {"self_attn.q_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_HD, DIM_C}},
        [K_WEIGHT]    = {"self_attn.k_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_KD, DIM_C}},
        [V_WEIGHT]    = {"self_attn.v_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_KD, DIM_C}},
        [Q_BIAS]      = {"self_attn.q_proj.bias", PARAM_BIAS, INIT_ZERO, {DIM_HD},
                         .needs = FEATURE_QKV_BIAS},
        [K_BIAS]      = {"self_attn.k_proj.bias", PARAM_BIAS, INIT_ZERO, {DIM_KD},
                         .needs = FEATURE_QKV_BIAS},
        [V_BIAS]      = {"self_attn.v_proj.bias", PARAM_BIAS, INIT_ZERO, {DIM_KD},
                         .needs = FEATURE_QKV_BIAS},
        [Q_NORM]      = {"self_attn.q_norm.weight", PARAM_NORM, INIT_ONE, {DIM_D},
                         .needs = FEATURE_QK_NORM},
        [K_NORM]      = {"self_attn.k_norm.weight", PARAM_NORM, INIT_ONE, {DIM_D},
                         .needs = FEATURE_QK_NORM},
        [PROJECTION]  = {"self_attn.o_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_C, DIM_HD}},
        [NORM_2]      = {"post_attention_layernorm.weight", PARAM_NORM, INIT_ONE, {DIM_C}},
        [GATE]        = {"mlp.gate_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_F, DIM_C}},
        [UP]          = {"mlp.up_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_F, DIM_C}},
        [DOWN]        = {"mlp.down_proj.weight", PARAM_WEIGHT, INIT_NORMAL, {DIM_C, DIM_F}},
    },
};
/* clang-format on */

enum {
  LLAMA = FEATURE_GROUPS | FEATURE_HEAD_WIDTH | FEATURE_ROPE | FEATURE_UNTIED | FEATURE_SWIGLU,
  WINDOW_FROM = FEATURE_WINDOW | FEATURE_WINDOW_FROM
};

static const struct stage_row one_stage[] = {{NULL, ATTENTION | FEED_FORWARD, false}, {0}};

static const struct architecture architectures[] = {
    /* Radford et al. 2019, "Language models are unsupervised multitask learners" */
    {"gpt2", &gpt2_family, FEATURE_FFN_4C | FEATURE_CONV1D, one_stage},
    /* Touvron et al. 2023, arXiv:2302.13971; Llama 3: Grattafiori et al. 2024, arXiv:2407.21783 */
    {"llama", &llama_family, LLAMA, one_stage},
    /* Jiang et al. 2023, arXiv:2310.06825 */
    {"mistral", &llama_family, LLAMA | FEATURE_WINDOW, one_stage},
    /* Qwen2 and Qwen2.5: Yang et al. 2024, arXiv:2407.10671, arXiv:2412.15115 */
    {"qwen2", &llama_family, LLAMA | WINDOW_FROM | FEATURE_QKV_BIAS, one_stage},
    /* Yang et al. 2025, arXiv:2505.09388 */
    {"qwen3", &llama_family, LLAMA | WINDOW_FROM | FEATURE_QK_NORM, one_stage},
};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

enum status architecture_find(const char *name, const struct architecture **out)
{
  char known[256] = "";
  for (int i = 0; i < ARCHITECTURES; i++) {
    if (strcmp(architectures[i].name, name) == 0) {
      *out = &architectures[i];
      return STATUS_OK;
    }
    append_text(known, sizeof known, "%s%s", i > 0 ? ", " : "", architectures[i].name);
  }
  return status_usage("model.arch: there is no architecture \"%s\"; this build knows: %s", name,
                      known);
}
