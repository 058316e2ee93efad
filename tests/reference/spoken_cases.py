# SPDX-License-Identifier: Apache-2.0
"""The models that hear, and the decks, under which test_spoken_parity.py compares zea with transformers."""

AUDIO_TP2 = ["mesh.llm.tp=2", "mesh.audio.tp=2"]
# So many microbatches that a pipeline fills.
PIPELINED = ["data.row_tokens=80", "mesh.llm.pp=2"]
BESIDE = ["data.row_tokens=80", 'mesh.placement="disjoint"', "mesh.audio.encoder_dp=1"]
AUDIO_CP2 = ["mesh.llm.cp=2", "mesh.llm.cp_block=8", "mesh.audio.cp=2", "mesh.audio.cp_block=4"]
# Differences: the family, Whisper's config, LLaVA's, the deck, frozen modules, ranks.
CASES = {
    "plain": {},
    "relu": {"audio": {"activation_function": "relu"}, "llava": {"projector_hidden_act": "relu"}},
    "no_projector_bias": {"llava": {"multimodal_projector_bias": False}},
    "long_clips": {"audio": {"max_source_positions": 70, "num_mel_bins": 80}},
    "frozen_audio": {"frozen": ["audio_tower."], "deck": ["model.audio.train=false"]},
    "only_the_audio_projector": {
        "frozen": ["audio_tower.", "vision_tower.", "multi_modal_projector.", "language_model."],
        "deck": [
            "model.audio.train=false",
            "model.vision.train=false",
            "model.vision.train_projector=false",
            "model.llm.train=false",
        ],
    },
    "batches_without_items": {"items": ["", "i", "a", ""], "deck": ["data.row_tokens=80"]},
    "two_replicas": {"ranks": 2},
    "tp2": {"ranks": 2, "deck": ["mesh.llm.tp=2", "mesh.audio.tp=2"]},
    "tp2_encoders_dealt": {"ranks": 2, "deck": ["mesh.llm.tp=2"]},
    "cp2_of_audio": {
        "ranks": 2,
        "deck": AUDIO_CP2,
    },
    "pp2": {"ranks": 2, "deck": PIPELINED},
    "qwen2_audio": {"family": "qwen2_audio"},
    "qwen2_audio_of_odd_length": {
        "family": "qwen2_audio",
        "audio": {"max_source_positions": 13, "activation_function": "relu"},
    },
    "qwen2_audio_options": {
        "family": "qwen2_audio",
        "audio": {"encoder_attention_heads": 2, "encoder_ffn_dim": 20, "num_mel_bins": 80},
        "text": {"rms_norm_eps": 1e-2, "num_key_value_heads": 1, "use_sliding_window": True, "sliding_window": 7,
                 "max_window_layers": 1},
    },
    "qwen2_audio_frozen": {
        "family": "qwen2_audio",
        "frozen": ["audio_tower.", "language_model."],
        "deck": ["model.audio.train=false", "model.llm.train=false"],
        "trained": "multi_modal_projector.linear.weight",
    },
    "qwen2_audio_two_replicas": {"family": "qwen2_audio", "ranks": 2},
    "qwen2_audio_tp2": {"family": "qwen2_audio", "ranks": 2, "deck": AUDIO_TP2},
    "qwen2_audio_cp2": {"family": "qwen2_audio", "ranks": 2, "deck": AUDIO_CP2},
    "qwen2_audio_dealt": {"family": "qwen2_audio", "ranks": 2, "deck": ["mesh.llm.tp=2"]},
    "qwen2_audio_pp2": {"family": "qwen2_audio", "ranks": 2, "deck": PIPELINED},
    "qwen2_audio_beside": {"family": "qwen2_audio", "ranks": 2, "deck": BESIDE},
    "voxtral": {"family": "voxtral"},
    "voxtral_relu": {
        "family": "voxtral",
        "audio": {"activation_function": "relu"},
        "config": {"projector_hidden_act": "silu"},
    },
    "voxtral_options": {
        "family": "voxtral",
        "audio": {"activation_function": "quick_gelu", "num_attention_heads": 2, "num_mel_bins": 80},
        "text": {"attention_bias": True, "head_dim": 12, "mlp_bias": True, "num_key_value_heads": 1,
                 "rms_norm_eps": 1e-2},
        "config": {"projector_hidden_act": "relu"},
    },
    "voxtral_frozen": {
        "family": "voxtral",
        "frozen": ["audio_tower."],
        "deck": ["model.audio.train=false"],
        "trained": "multi_modal_projector.linear_1.weight",
    },
    "voxtral_tp2": {"family": "voxtral", "ranks": 2, "deck": AUDIO_TP2},
    "voxtral_cp2": {"family": "voxtral", "ranks": 2, "deck": AUDIO_CP2},
    "voxtral_pp2": {
        "family": "voxtral",
        "ranks": 2,
        "deck": [*PIPELINED, 'mesh.schedule="zero_bubble"'],
    },
    "voxtral_beside": {"family": "voxtral", "ranks": 2, "deck": BESIDE},
}
