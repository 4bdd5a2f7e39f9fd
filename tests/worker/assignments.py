"""How samples may be cut into blocks, dealt to workers and ordered, as hypothesis strategies."""

from hypothesis import strategies as st

DEALT = {
    "samples": st.integers(1, 60),
    "blocks": st.integers(1, 6),
    "workers": st.integers(1, 4),
    "shuffle": st.sampled_from(["blocks", "total", None]),
    "shuffle_seed": st.sampled_from([None, 4]),
}
