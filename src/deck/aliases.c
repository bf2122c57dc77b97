/* Names from other trainers, and the deck keys that take their place. The message for an unknown
 * key cites this table, because the nearest spelling is often the wrong key. Decks still need
 * Sluice's own names. */
#include "deck/deck.h"

const struct option_alias deck_strategy_aliases[] = {
    {"fsdp zero3 zero_3 stage3 stage_3 3", "full_shard"},
    {"zero2 zero_2 stage2 stage_2 2", "shard_grad_op"},
    {"zero1 zero_1 stage1 stage_1 1", "shard_optim"},
    {"ddp zero0 none 0", "no_shard"},
    {"hsdp hybrid", "hybrid_shard"},
    {0},
};

// clang-format off: one row per key
const struct option_alias deck_aliases[] = {
    {"max_steps num_steps total_steps train_steps training_steps max_iters train_iters iterations",
     "run.steps"},
    {"epochs num_epochs max_epochs num_train_epochs", "run.steps",
     "Sluice counts optimizer steps; an epoch has as many as the data has tokens / (data.batch * "
     "data.sequence)"},
    {"output_dir out_dir save_dir run_dir checkpoint_dir", "run.dir"},
    {"wandb wandb_project use_wandb report_to logging_dir", "run.dir",
     "every run writes its losses and speed to results.jsonl and to event files for TensorBoard "
     "in that folder"},
    {"tensorboard use_tensorboard log_tensorboard tensorboard_dir", "run.tensorboard"},
    {"log_interval log_every logging_steps log_every_n_steps", NULL,
     "results.jsonl has every step, so leave it out"},
    {"random_seed manual_seed", "run.seed"},
    {"shuffle data_seed", "run.seed", "samples come in a random order, which the seed decides"},
    {"precision mixed_precision amp bf16 fp16 fp32 fp8 half", "run.compute"},
    {"fp8_wgrad fp8_weight_gradients fp8_wgrads", "run.fp8_gradients",
     "false keeps both operands of weight gradients in bf16"},
    {"fp8_recipe fp8_filter_fqns filter_fqns first_last_layers_bf16 num_layers_at_start_in_bf16 "
     "num_layers_at_end_in_bf16", "run.fp8_except",
     "blocks that stay in bf16, such as [first:1, last:1]"},
    {"fp8_scaling fp8_scaling_type fp8_recipe_name", "run.fp8_scales"},
    {"num_threads n_threads num_workers omp_num_threads", "run.threads"},

    {"architecture model_type architectures", "model.arch"},
    {"num_layers n_layer n_layers num_hidden_layers depth", "model.layers"},
    {"hidden_size hidden_dim n_embd d_model dim embed_dim", "model.width"},
    {"num_heads n_head n_heads num_attention_heads", "model.heads"},
    {"num_kv_heads n_kv_heads num_key_value_heads num_query_groups", "model.kv_heads"},
    {"head_dim kv_channels", "model.head_width"},
    {"intermediate_size ffn_dim ffn_hidden_size mlp_dim n_inner", "model.ffn"},
    {"max_position_embeddings n_positions n_ctx block_size context_length max_seq_len",
     "model.context"},
    {"vocab_size n_vocab padded_vocab_size", "model.vocab"},
    {"rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon",
     "model.norm_eps"},
    {"dropout attention_dropout hidden_dropout attn_dropout resid_dropout attn_pdrop resid_pdrop "
     "embd_pdrop", NULL, "Sluice has no dropout, so leave it out"},
    {"compile torch_compile flash_attention flash_attn use_flash_attention attn_implementation",
     NULL, "Sluice has no such switch, so leave it out"},
    {"initializer_range init_method_std", "model.init_std"},
    {"tie_word_embeddings tie_embeddings weight_tying", "model.tied"},
    {"sliding_window attention_window", "model.window"},
    {"rope_base rotary_base", "model.rope_theta"},

    {"model_name_or_path pretrained pretrained_model init_from model_path", "train.init"},
    {"freeze_layers frozen frozen_layers", "train.freeze"},
    {"loss_type rlhf rl", "train.objective"},
    {"dpo_beta pref_beta kl_beta", "train.beta"},
    {"resume resume_from resume_from_checkpoint load_checkpoint auto_resume", NULL,
     "use sluice train DECK --resume auto"},

    {"dataset dataset_path data_path train_data train_files train_dataset", "data.train"},
    {"val_data eval_data eval_dataset validation_data validation_files", "data.val"},
    {"val_split validation_split val_size test_size", NULL,
     "sluice prepare val=0.01 keeps a share of the text for validation"},
    {"batch_size global_batch_size train_batch_size total_batch_size", "data.batch",
     "sequences per step over all ranks"},
    {"micro_batch_size local_batch_size device_batch_size per_device_train_batch_size "
     "train_micro_batch_size_per_gpu", "data.micro_batch",
     "sequences per micro-batch of a rank; data.batch counts those of a step over all ranks"},
    {"grad_accum grad_accum_steps gradient_accumulation gradient_accumulation_steps "
     "accumulate_grad_batches", "data.micro_batch",
     "each rank accumulates data.batch / (ranks * data.micro_batch) micro-batches per step"},
    {"seq_len seq_length sequence_length max_length max_seq_length", "data.sequence"},

    {"fsdp ddp deepspeed zero zero_stage zero_optimization stage sharding sharding_strategy",
     "shard.strategy",
     "full_shard is FSDP or ZeRO stage 3, shard_grad_op stage 2, shard_optim stage 1, no_shard "
     "DDP"},
    {"tensor_parallel tensor_parallel_size pipeline_parallel pipeline_parallel_size "
     "context_parallel expert_parallel", "shard.strategy", "Sluice is data-parallel only"},
    {"n np nproc nproc_per_node num_processes world_size num_gpus gpus_per_node nnodes", NULL,
     "the launcher sets the number of ranks, as in mpirun -n 4 sluice train DECK; sluice plan "
     "takes --ranks 4"},
    {"ddp_timeout dist_timeout nccl_timeout", "comm.timeout"},
    {"ddp_backend dist_backend distributed_backend", "comm.backend"},

    {"gradients reduce_dtype comm_hook compression gradient_compression communication_data_type",
     "compress.grads.codec"},
    {"error_feedback", "compress.feedback"},

    {"gradient_checkpointing activation_checkpointing activation_checkpoint recompute_granularity",
     "tiers.activations", "set it to recompute"},
    {"cpu_offload offload offload_params offload_param offload_optimizer", "tiers.params",
     "set it and tiers.optimizer to host"},
    {"nvme_path offload_dir offload_folder", "tiers.nvme"},

    {"optimizer_name optimizer_type optimizer", "optim.name",
     "its settings are the other keys of optim"},
    {"learning_rate base_lr max_lr peak_lr", "optim.lr"},
    {"param_groups parameter_groups lr_mult lr_multiplier lr_multipliers embedding_lr "
     "embedding_learning_rate", "optim.lr_scale", "a factor per unit, such as [root=0.5]"},
    {"min_learning_rate lr_min eta_min", "optim.min_lr", "a share of optim.lr"},
    {"beta1 beta2 adam_beta1 adam_beta2", "optim.betas", "a list of both, such as [0.9, 0.95]"},
    {"epsilon adam_eps adam_epsilon", "optim.eps"},
    {"max_grad_norm grad_clip clip_grad clip_grad_norm gradient_clipping gradient_clip_val",
     "optim.clip"},
    {"scheduler lr_scheduler lr_scheduler_type lr_schedule lr_decay_style", "optim.schedule"},
    {"warmup_steps warmup_iters num_warmup_steps lr_warmup_iters warmup_ratio", "optim.warmup",
     "in steps"},
    {"lr_decay_iters lr_decay_steps max_decay_steps", "optim.decay_steps"},

    {"save_steps save_every save_interval checkpoint_interval", "checkpoint.every"},
    {"save_total_limit keep_latest_k", "checkpoint.keep"},
    {"eval_steps eval_interval val_check_interval", "eval.every"},
    {"eval_iters limit_val_batches", "eval.batches"},
    {"early_stopping early_stopping_patience patience", "run.steps",
     "a run trains this number of steps; a file STOP in run.dir ends it earlier"},
    {"profile profiler", "train.trace"},
    {"lora_r peft use_peft", "lora.rank"},
    {"lora_alpha", "lora.alpha"},
    {"lora_target lora_target_modules target_modules lora_attn_modules", "lora.targets",
     "patterns of whole names, such as [*.q_proj.weight]"},
    {"use_rslora", "lora.rslora"},
    {"lora_dropout", NULL, "adapters have no dropout, so leave it out"},
    {0},
};
// clang-format on
