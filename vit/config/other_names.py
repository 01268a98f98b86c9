"""Names that settings have in other libraries."""

from __future__ import annotations

OTHER_NAMES = {
    "train.epochs": ("num_epochs", "max_epochs", "num_train_epochs"),
    "train.precision": ("amp", "dtype", "mixed_precision"),
    "train.label_smoothing": ("smoothing",),
    "train.ema_decay": ("ema", "model_ema", "model_ema_decay"),
    "train.accumulation_steps": ("grad_accum_steps", "gradient_accumulation_steps", "accum_iter"),
    "train.gradient_checkpointing": ("grad_checkpointing",),
    "optim.lr": ("learning_rate", "base_lr", "blr"),
    "optim.weight_decay": ("wd",),
    "optim.name": ("opt", "optimizer"),
    "optim.schedule": ("sched", "scheduler", "lr_scheduler"),
    "optim.warmup_epochs": ("warmup", "lr_warmup_epochs"),
    "optim.clip_norm": ("clip_grad", "grad_clip", "max_grad_norm", "gradient_clip_val"),
    "data.batch_size": ("bs", "train_batch_size", "per_device_train_batch_size"),
    "data.eval_batch_size": ("validation_batch_size", "val_batch_size", "per_device_eval_batch_size"),
    "data.workers": ("num_workers", "dataloader_num_workers"),
    "data.root": ("path", "data_path", "data_dir", "train_dir", "folder"),
    "data.name": ("dataset", "dataset_name"),
    "model.name": ("arch", "architecture", "model_name", "backbone"),
    "model.pretrained": ("weights", "checkpoint", "finetune"),
    "model.stochastic_depth_rate": ("drop_path_rate", "drop_path"),
    "model.dropout_rate": ("dropout", "drop_rate"),
    "model.in_channels": ("in_chans", "num_channels"),
    "model.pooling": ("global_pool",),
    "model.image_size": ("img_size", "input_size", "resolution"),
    "augment.mixup_alpha": ("mixup",),
    "augment.cutmix_alpha": ("cutmix",),
    "augment.erasing_probability": ("reprob", "random_erase"),
    "augment.policy": ("aa", "auto_augment", "autoaugment", "randaug", "randaugment", "rand_augment"),
    "output_dir": ("output", "out_dir", "save_dir", "log_dir"),
}
"""Setting → other libraries' names for it. Such a name is an error that gives ours."""
