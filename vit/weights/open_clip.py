"""The image tower of CLIP under OpenAI's names, which open_clip uses, and ours.

Radford et al. 2021; github.com/mlfoundations/open_clip. The projection into the space shared with text is our head,
without a bias; the text tower is dropped. Files do not record whether the activation is QuickGELU (OpenAI) or GELU
(most of open_clip's), nor the number of heads: the model must be named.
"""

from __future__ import annotations

from vit.libraries.open_clip import open_clip_forward
from vit.weights.layout import TEXT_TOWER, Layout, block_rules, copied, positions, reshaped

RULES = (
    copied("embedding.projection.{kind}", "visual.conv1.{kind}"),
    reshaped("class_token", "visual.class_embedding", "c -> 1 1 c"),
    *positions("visual.positional_embedding", "n c -> 1 n c"),
    copied("pre_norm.{kind}", "visual.ln_pre.{kind}"),
    *block_rules(
        "visual.transformer.resblocks.{layer}.",
        *("ln_1.{kind}", "attn.in_proj_{kind}", "attn.out_proj.{kind}"),
        *("ln_2.{kind}", "mlp.c_fc.{kind}", "mlp.c_proj.{kind}"),
    ),
    copied("norm.{kind}", "visual.ln_post.{kind}"),
    reshaped("head.weight", "visual.proj", "c k -> k c"),
)
DROPPED = {
    r"transformer\..*|token_embedding\.weight|positional_embedding|ln_final\..*|text_projection": TEXT_TOWER,
    r"logit_scale|logit_bias|attn_mask": TEXT_TOWER,
    r"input_resolution|context_length|vocab_size": "numbers about the model, in OpenAI's own files",
}


OPEN_CLIP = Layout(
    name="open_clip",
    recognizes=lambda tensors: "visual.class_embedding" in tensors,
    rules=RULES,
    reference=open_clip_forward,
    dropped=DROPPED,
)
