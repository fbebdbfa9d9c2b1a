"""The weights of a decode step that goes in one launch: a queue in shared memory for each warp that multiplies.

Which rows are whose depends on sizes alone, so the weights of the whole step are known from its start: warps that do
nothing else ask for them, with copies by the card's own engine (`cp.async.bulk`, from compute capability 9.0 on), as
far ahead as the queues have room, also over a meeting of the blocks. So the memory does not rest while they wait.
"""

from __future__ import annotations

__all__ = ["QUEUE", "WEIGHTS"]

QUEUE = r"""
/* What a block has of a phase's units: the first, how many, and the logarithm of how many warps share the columns of
   each: as many as leave a warp STEP_LEAST pieces of 16 bytes, so that all come to an end together. */
struct Lot { int first, count, log; };
__device__ __forceinline__ Lot lot_of(int units, int pieces) {
    int first = (unsigned)units * blockIdx.x / gridDim.x, end = (unsigned)units * (blockIdx.x + 1) / gridDim.x;
    Lot lot = {first, end - first, 0};
    while (2 << lot.log <= STEP_WARPS && pieces >> (lot.log + 1) >= STEP_LEAST) lot.log++;
    return lot;
}
/* The first piece of 16 bytes of a share of a row. */
__device__ __forceinline__ int piece_of(int pieces, int share, int log) { return pieces * share >> log; }

/* Barriers in shared memory that count bytes, and a copy by the card's own engine that tells one of them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned address_of(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void open_barrier(unsigned bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void show_barriers() {  /* to the engine; the threads meet afterwards */
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void expect_bytes(unsigned bar, int nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(nbytes) : "memory");
}
__device__ __forceinline__ void copy_bytes(unsigned to, const void* from, int nbytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(nbytes), "r"(bar) : "memory");
}
__device__ __forceinline__ bool is_over(unsigned bar, unsigned parity) {
    unsigned done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ void wait_for(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}
#endif

"""
"""Who has which rows, and barriers and copies of shared memory."""

WEIGHTS = r"""
/* Where the weights lie, and what decides which rows are whose. `kind` of a phase: 0 qkv, 1 wo, 2 w1 and w3, 3 w2, and
   4 the classifier; a unit of it is two rows that are multiplied together. */
struct Weights@S@ {
    const @W@ *wq, *wk, *wv, *wo, *w1, *w2, *w3, *classifier;
    int dim, kv_dim, hidden, layers, vocab;
    __device__ __forceinline__ int units(int kind) const {
        return kind == 0 ? dim / 2 + kv_dim : kind == 2 ? hidden : kind == 4 ? (vocab + 1) / 2 : dim / 2;
    }
    __device__ __forceinline__ int pieces(int kind) const { return (kind == 3 ? hidden : dim) / @PER@; }
    __device__ __forceinline__ void rows(int kind, int layer, int unit, const uint4*& a, const uint4*& b) const {
        int i = 2 * unit, n = dim;
        const @W@* w = wo;
        size_t row = (size_t)layer * dim + i;
        if (kind == 0) {
            w = wq;
            if (i >= dim + kv_dim) { w = wv; row = (size_t)layer * kv_dim + i - dim - kv_dim; }
            else if (i >= dim) { w = wk; row = (size_t)layer * kv_dim + i - dim; }
        } else if (kind == 2) {
            row = (size_t)layer * hidden + unit;
            a = (const uint4*)(w1 + row * dim);
            b = (const uint4*)(w3 + row * dim);
            return;
        } else if (kind == 3) { w = w2; n = hidden; }
        else if (kind == 4) { w = classifier; row = i; }
        a = (const uint4*)(w + row * n);
        b = kind == 4 && i + 1 >= vocab ? a : (const uint4*)(w + (row + 1) * n);
    }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* What a warp that feeds does: a lane asks for the weights of one warp, of the whole step in their order, as soon as a
   chunk of that warp's queue is empty. */
__device__ __forceinline__ void feed@S@(const Weights@S@& weights, const Lot* lots, const float* rms_att,
                                        const float* rms_ffn, const float* rms_final, unsigned queue, unsigned full,
                                        unsigned empty, int phases) {
    int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - STEP_WARPS + STEP_FEEDERS * lane;
    int phase = warp < STEP_WARPS ? 0 : phases, number = warp, left = 0, turn = 0;
    unsigned parity = 1;
    const uint4 *a = 0, *b = 0;
    queue += warp * (STEP_DEPTH * 32 * STEP_CHUNK);
    full += warp * (8 * STEP_DEPTH);
    empty += warp * (8 * STEP_DEPTH);
    while (true) {
        while (left == 0 && phase < phases) {
            int kind = phase < 4 * weights.layers ? phase & 3 : 4, layer = phase >> 2;
            Lot lot = lots[kind];
            if (number < lot.count << lot.log) {
                int share = number & ((1 << lot.log) - 1), pieces = weights.pieces(kind);
                int from = piece_of(pieces, share, lot.log);
                weights.rows(kind, layer, lot.first + (number >> lot.log), a, b);
                left = piece_of(pieces, share + 1, lot.log) - from;
                a += from;
                b += from;
                number += STEP_WARPS;
                continue;
            }
            phase++;
            number = warp;
            if (warp || !(kind == 0 || kind == 2)) continue;
            /* Gains of the norm after the next meetings, a line by each block: they come from far as well. */
            const float* gain = kind == 0 ? rms_ffn + (size_t)layer * weights.dim
                : layer + 1 < weights.layers ? rms_att + (size_t)(layer + 1) * weights.dim : rms_final;
            for (int j = 32 * blockIdx.x; j < weights.dim; j += 32 * gridDim.x)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(gain + j));
        }
        if (!__any_sync(FULL, left)) return;
        if (left && is_over(empty + 8 * turn, parity)) {
            int count = left < STEP_CHUNK ? left : STEP_CHUNK;
            unsigned to = queue + turn * (32 * STEP_CHUNK), bar = full + 8 * turn;
            expect_bytes(bar, 32 * count);
            copy_bytes(to, a, 16 * count, bar);
            copy_bytes(to + 16 * STEP_CHUNK, b, 16 * count, bar);
            a += count;
            b += count;
            left -= count;
            if (++turn == STEP_DEPTH) { turn = 0; parity ^= 1; }
        }
        __syncwarp();
    }
}

/* Two sums of a unit, over the columns of a warp's share, from its queue. Every lane gets both. */
struct Queue@S@ {
    const char* at;
    unsigned full, empty, turn, parity;
    __device__ __forceinline__ void sums(int from, int end, const float* xs, float& s, float& t) {
        int lane = threadIdx.x & 31;
        s = t = 0.0f;
#pragma unroll 1
        for (; from < end; from += STEP_CHUNK) {
            wait_for(full + 8 * turn, parity);
            const uint4* here = (const uint4*)(at + turn * (32 * STEP_CHUNK));
#pragma unroll
            for (int j = 0; j < STEP_CHUNK; j += 32) {
                int at = from + j + lane;
                if (at < end) {
                    uint4 u = here[j + lane], w = here[j + lane + STEP_CHUNK];
                    @MULTIPLY@
                }
            }
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * turn);
            if (++turn == STEP_DEPTH) { turn = 0; parity ^= 1; }
        }
        s = warp_sum(s);
        t = warp_sum(t);
    }
};
#endif
"""
"""For one type of weights: where they lie, who asks for them, and who multiplies them."""
