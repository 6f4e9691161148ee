"""The operators of the sweep, each between a cheap product and a mean.

By the shape of what the product makes. Where an operator has weights, it is a module, made once.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from scripts.bench.memory.operators.parts import (
    HEADS,
    IMAGES,
    ROWS,
    SERIES,
    SQUARES,
    VOLUMES,
    Case,
    attended,
    classes,
    forced,
    functions,
    ids,
    laid_out,
    modules,
    packed,
    put,
    target,
    turned,
)
from scripts.bench.memory.operators.token_cases import TOKEN_CASES

CASES: dict[str, Case] = {
    **TOKEN_CASES,
    **functions(
        ROWS,
        {
            "cross_entropy": lambda x: F.cross_entropy(x, classes(x)),
            "cross_entropy-smooth": lambda x: F.cross_entropy(x, classes(x), label_smoothing=0.1),
            "cross_entropy-soft": lambda x: F.cross_entropy(x, target(x)),
            "cross_entropy-none": lambda x: F.cross_entropy(x, classes(x), reduction="none"),
            "nll": lambda x: F.nll_loss(x.log_softmax(-1), classes(x)),
            "mse": lambda x: F.mse_loss(x, target(x)),
            "mse-none": lambda x: F.mse_loss(x, target(x), reduction="none"),
            "l1": lambda x: F.l1_loss(x, target(x)),
            "smooth_l1": lambda x: F.smooth_l1_loss(x, target(x)),
            "huber": lambda x: F.huber_loss(x, target(x)),
            "bce": lambda x: F.binary_cross_entropy(x.float().sigmoid(), target(x).float()),
            "bce-logits": lambda x: F.binary_cross_entropy_with_logits(x, target(x)),
            "bce-logits-pw": lambda x: F.binary_cross_entropy_with_logits(x, target(x), pos_weight=x.new_ones(512)),
            "bce-logits-w": lambda x: F.binary_cross_entropy_with_logits(x, target(x), weight=x.new_ones(512)),
            "kl": lambda x: F.kl_div(x.log_softmax(-1), target(x), reduction="batchmean"),
            "kl-log": lambda x: F.kl_div(x.log_softmax(-1), target(x), log_target=True),
            "nll_gauss": lambda x: F.gaussian_nll_loss(x, target(x), x.exp()),
            "poisson": lambda x: F.poisson_nll_loss(x, target(x)),
            "soft_margin": lambda x: F.soft_margin_loss(x, target(x)),
            "mlsm": lambda x: F.multilabel_soft_margin_loss(x, target(x)),
            "multi_margin": lambda x: F.multi_margin_loss(x, classes(x)),
            "multilabel_margin": lambda x: F.multilabel_margin_loss(x, ids(x, 512, *x.shape)),
            "hinge": lambda x: F.hinge_embedding_loss(x, target(x)),
            "margin_ranking": lambda x: F.margin_ranking_loss(x, 1 - x, target(x)),
            "triplet": lambda x: F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0)),
            "cosine_embedding": lambda x: F.cosine_embedding_loss(x, x.roll(1, 0), x.new_ones(x.shape[0])),
            "pairwise": lambda x: F.pairwise_distance(x, x.roll(1, 0)),
            "pdist": lambda x: F.pdist(x[:512]),
            "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
            "info-nce": lambda x: F.cross_entropy(
                F.normalize(x[:4096]) @ F.normalize(x[:4096]).T, torch.arange(4096, device=x.device)
            ),
            "focal": lambda x: (
                (1 - x.sigmoid()) ** 2 * F.binary_cross_entropy_with_logits(x, target(x), reduction="none")
            ).mean(),
            "index_put": partial(put, accumulate=False),
            "index_put-acc": partial(put, accumulate=True),
            "dice": lambda x: 1 - 2 * (x.sigmoid() * target(x)).sum() / (x.sigmoid() + target(x)).sum(),
        },
    ),
    **functions(
        IMAGES,
        {
            "max_pool": lambda x: F.max_pool2d(x, 2),
            "avg_pool": lambda x: F.avg_pool2d(x, 2),
            "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, 1),
            "adaptive_avg-7": lambda x: F.adaptive_avg_pool2d(x, 7),
            "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 7),
            "lp_pool": lambda x: F.lp_pool2d(x, 2, 2),
            "max_pool-CL": lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 3, 2, 1),
            "bilinear-up": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "nearest-up": lambda x: F.interpolate(x, scale_factor=2),
            "bicubic-up": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
            "aa-down": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
            "area-down": lambda x: F.interpolate(x, scale_factor=0.5, mode="area"),
            "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
            "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
            "unfold": lambda x: F.unfold(x, 3, padding=1),
            "fold": lambda x: F.fold(x.reshape(32, 256, 1024), (64, 64), 2, stride=2),
            "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
            "replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
            "circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
            "grid_sample": lambda x: F.grid_sample(x, x.new_zeros(32, 64, 64, 2)),
            "affine_grid": turned,
            "lrn": lambda x: F.local_response_norm(x, 5),
            "dropout2d": partial(F.dropout2d, p=0.1),
            "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
            "instance_norm": F.instance_norm,
            "windows": lambda x: (
                x.permute(0, 2, 3, 1)
                .roll((-4, -4), (1, 2))
                .reshape(32, 8, 8, 8, 8, 64)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(-1, 64, 64)
            ),
            "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
        },
    ),
    **modules(
        IMAGES,
        {
            "conv": lambda: nn.Conv2d(64, 64, 3, padding=1),
            "conv-CL": lambda: laid_out(nn.Conv2d(64, 64, 3, padding=1), torch.channels_last),
            "conv-1x1": lambda: nn.Conv2d(64, 128, 1),
            "conv-depth": lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64),
            "conv-stride": lambda: nn.Conv2d(64, 128, 4, 4),
            "conv-dilated": lambda: nn.Conv2d(64, 64, 3, dilation=2),
            "conv_transpose": lambda: nn.ConvTranspose2d(64, 32, 2, 2),
            "batch_norm": lambda: nn.BatchNorm2d(64),
            "batch_norm-relu": lambda: nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
            "group_norm": lambda: nn.GroupNorm(8, 64),
            "instance_norm-w": lambda: nn.InstanceNorm2d(64, affine=True),
            "conv-reflect": lambda: nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"),
            "group_norm-CL": lambda: nn.Sequential(
                laid_out(nn.Conv2d(64, 64, 1), torch.channels_last), nn.GroupNorm(8, 64)
            ),
        },
    ),
    **modules(
        VOLUMES,
        {
            "conv3d": lambda: nn.Conv3d(32, 32, 3, padding=1),
            "conv3d-CL": lambda: laid_out(nn.Conv3d(32, 32, 3, padding=1), torch.channels_last_3d),
            "batch_norm-3d": lambda: nn.BatchNorm3d(32),
            "max_pool3d": lambda: nn.MaxPool3d(2),
            "avg_pool3d": lambda: nn.AvgPool3d(2),
            "trilinear": lambda: nn.Upsample(scale_factor=2, mode="trilinear"),
            "conv_transpose3d": lambda: nn.ConvTranspose3d(32, 16, 2, 2),
            "group_norm-3d": lambda: nn.GroupNorm(8, 32),
            "instance_norm-3d": lambda: nn.InstanceNorm3d(32),
            "unet-3d": lambda: nn.Sequential(
                nn.Conv3d(32, 32, 3, padding=1),
                nn.InstanceNorm3d(32, affine=True),
                nn.LeakyReLU(),
                nn.MaxPool3d(2),
                nn.ConvTranspose3d(32, 32, 2, 2),
            ),
        },
    ),
    **modules(
        SERIES,
        {
            "conv1d": lambda: nn.Conv1d(256, 256, 3, padding=1),
            "conv1d-depth": lambda: nn.Conv1d(256, 256, 15, padding=7, groups=256),
            "max_pool1d": lambda: nn.MaxPool1d(2),
            "avg_pool1d": lambda: nn.AvgPool1d(2),
            "linear-up1d": lambda: nn.Upsample(scale_factor=2, mode="linear"),
            "conv_transpose1d": lambda: nn.ConvTranspose1d(256, 128, 4, 2, 1),
            "ctc": lambda: (
                lambda x: F.ctc_loss(
                    x.permute(2, 0, 1).log_softmax(-1),
                    ids(x, 9, 32, 20),
                    torch.full((32,), 1024),
                    torch.full((32,), 20),
                )
            ),
            "weight_norm-conv": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(256, 256, 3)),
            "stft": lambda: (
                lambda x: torch.stft(
                    x.reshape(32, -1).float(),
                    512,
                    128,
                    window=torch.hann_window(512, device=x.device),
                    return_complex=True,
                ).abs()
            ),
        },
    ),
    **functions(
        HEADS,
        {
            "sdpa": attended,
            "sdpa-causal": partial(attended, is_causal=True),
            "sdpa-dropout": partial(attended, dropout_p=0.1),
            "sdpa-mask": lambda x: attended(
                x, attn_mask=torch.ones(512, 512, dtype=torch.bool, device=x.device).tril()
            ),
            "sdpa-bias": lambda x: attended(x, attn_mask=x.new_zeros(1, 8, 512, 512)),
            "sdpa-gqa": partial(attended, groups=4),
            "sdpa-gqa-causal": partial(attended, groups=4, is_causal=True),
            "sdpa-37": lambda x: attended(x[..., :37]),
            "sdpa-3d": lambda x: attended(x.flatten(0, 1)),
            "sdpa-wide": lambda x: attended(x.reshape(16, 1, 512, 512)),
            "sdpa-80": lambda x: attended(torch.cat([x, x[..., :16]], -1)),
            "sdpa-128": lambda x: attended(x.reshape(16, 4, 512, 128)),
            "sdpa-256": lambda x: attended(x.reshape(16, 2, 512, 256)),
            "sdpa-cross": lambda x: F.scaled_dot_product_attention(x, x[:, :, :100], x[:, :, :100]),
            "sdpa-forced-math": partial(forced, SDPBackend.MATH),
            "sdpa-forced-efficient": partial(forced, SDPBackend.EFFICIENT_ATTENTION),
            "sdpa-forced-flash": lambda x: forced(SDPBackend.FLASH_ATTENTION, x.half()),
            "sdpa-math-causal": partial(forced, SDPBackend.MATH, is_causal=True),
            "sdpa-packed": lambda x: packed(x.reshape(16, 512, 512), 8),
            "sdpa-1time": lambda x: attended(x[:, :, :1]),
            "softmax-attention": lambda x: ((x @ x.transpose(-1, -2)) / 8).softmax(-1) @ x,
        },
    ),
    **functions(
        SQUARES,
        {
            "det": lambda x: torch.linalg.det(x.float()),
            "cholesky": lambda x: torch.linalg.cholesky(x.float()),
            "solve": lambda x: torch.linalg.solve(x.float(), x.float()),
            "matrix_exp": lambda x: torch.matrix_exp(x.float()),
            "svd": lambda x: torch.linalg.svd(x.float())[1],
            "qr": lambda x: torch.linalg.qr(x.float())[1],
        },
    ),
}
