"""Kernels of the witnesses: content digests and counts of changed words, so that no cache has to be copied down.

The digest is `executor.observers.digest.tree_digest`: sha256 (FIPS 180-4) of blocks of 4,096 bytes, of their digests in
turn, until one is left. A thread has a block, a thread block a whole range; what it hands on lies in shared memory.
"""

from __future__ import annotations

__all__ = ["DIGEST", "LEAF_BYTES", "RANGES"]

LEAF_BYTES = 4096
RANGES = 128
"""Ranges of one launch: the module holds that many digests."""

_K = """
    0x428a2f98 0x71374491 0xb5c0fbcf 0xe9b5dba5 0x3956c25b 0x59f111f1 0x923f82a4 0xab1c5ed5 0xd807aa98 0x12835b01
    0x243185be 0x550c7dc3 0x72be5d74 0x80deb1fe 0x9bdc06a7 0xc19bf174 0xe49b69c1 0xefbe4786 0x0fc19dc6 0x240ca1cc
    0x2de92c6f 0x4a7484aa 0x5cb0a9dc 0x76f988da 0x983e5152 0xa831c66d 0xb00327c8 0xbf597fc7 0xc6e00bf3 0xd5a79147
    0x06ca6351 0x14292967 0x27b70a85 0x2e1b2138 0x4d2c6dfc 0x53380d13 0x650a7354 0x766a0abb 0x81c2c92e 0x92722c85
    0xa2bfe8a1 0xa81a664b 0xc24b8b70 0xc76c51a3 0xd192e819 0xd6990624 0xf40e3585 0x106aa070 0x19a4c116 0x1e376c08
    0x2748774c 0x34b0bcb5 0x391c0cb3 0x4ed8aa4a 0x5b9cca4f 0x682e6ff3 0x748f82ee 0x78a5636f 0x84c87814 0x8cc70208
    0x90befffa 0xa4506ceb 0xbef9a3f7 0xc67178f2
"""

_TEXT = r"""
/* What the witnesses' kernels found: read by the host in one small copy, which the trace shows as a look. */
extern "C" { __device__ unsigned long long looked[4 * @RANGES@ + 1]; }

__constant__ unsigned sha_k[64] = {@K@};
#define LEAF_WORDS 1024
#define FANOUT 128

__device__ __forceinline__ unsigned turn(unsigned x, int n) { return __funnelshift_r(x, x, n); }

/* One block of 64 bytes, as sixteen big-endian words, into the state. */
__device__ __noinline__ void sha_round(unsigned* h, unsigned* w) {
    unsigned s[8];
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = h[i];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            unsigned a = w[(i + 1) & 15], b = w[(i + 14) & 15];
            w[i & 15] += (turn(a, 7) ^ turn(a, 18) ^ (a >> 3)) + w[(i + 9) & 15]
                         + (turn(b, 17) ^ turn(b, 19) ^ (b >> 10));
        }
        unsigned one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6]))
                       + sha_k[i] + w[i & 15];
        unsigned two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22))
                       + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        s[7] = s[6]; s[6] = s[5]; s[5] = s[4]; s[4] = s[3] + one;
        s[3] = s[2]; s[2] = s[1]; s[1] = s[0]; s[0] = one + two;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

/* sha256 of `count` words of memory; SWAP where they lie in this machine's order, none where they are digests. */
template <bool SWAP>
__device__ void sha_words(const unsigned* at, int count, unsigned* out) {
    unsigned h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned w[16];
    int blocks = (count + 2) / 16 + 1;  /* the mark and 64 bits of length go behind */
    for (int b = 0; b < blocks; b++) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int j = 16 * b + i;
            unsigned v = j < count ? at[j] : 0u;
            if (SWAP) v = __byte_perm(v, 0, 0x0123);
            w[i] = j == count ? 0x80000000u : v;
        }
        if (b == blocks - 1) w[15] = 32u * (unsigned)count;
        sha_round(h, w);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = h[i];
}

/* A thread block a range of `words` words, `stride` words apart: digests into out, eight words each. */
extern "C" __global__ void digest(unsigned* out, const unsigned* base, long long stride, long long words) {
    __shared__ unsigned level[4][8 * FANOUT];
    const unsigned* range = base + stride * blockIdx.x;
    long long nodes[6];
    nodes[0] = (words + LEAF_WORDS - 1) / LEAF_WORDS;
    for (int k = 1; k < 6; k++) nodes[k] = (nodes[k - 1] + FANOUT - 1) / FANOUT;
    unsigned* to = (out ? out : (unsigned*)looked) + 8 * blockIdx.x;
    for (long long group = 0; group < nodes[1]; group++) {
        long long leaf = group * FANOUT + threadIdx.x;
        if (leaf < nodes[0]) {
            long long left = words - leaf * LEAF_WORDS;
            sha_words<true>(range + leaf * LEAF_WORDS, left < LEAF_WORDS ? (int)left : LEAF_WORDS,
                            level[0] + 8 * threadIdx.x);
        }
        __syncthreads();
        if (threadIdx.x == 0 && nodes[0] == 1)
            for (int i = 0; i < 8; i++) to[i] = level[0][i];
        else if (threadIdx.x == 0) {
            long long node = group, size = nodes[0] - group * FANOUT;
            for (int k = 0; k < 4; k++) {
                unsigned found[8];
                sha_words<false>(level[k], 8 * (int)(size < FANOUT ? size : FANOUT), found);
                unsigned* next = nodes[k + 1] == 1 ? to : level[k + 1 < 4 ? k + 1 : 3] + 8 * (node % FANOUT);
                for (int i = 0; i < 8; i++) next[i] = found[i];
                if (nodes[k + 1] == 1 || (node % FANOUT != FANOUT - 1 && node != nodes[k + 1] - 1)) break;
                size = node % FANOUT + 1;
                node /= FANOUT;
            }
        }
        __syncthreads();
    }
}

/* Words of the ranges that are not `word`, added to the 64 bits at out. */
extern "C" __global__ void count_other(unsigned long long* out, const unsigned* base, long long stride,
                                       long long words, int word) {
    const unsigned* range = base + stride * blockIdx.y;
    unsigned found = 0;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;
    for (; i < words; i += step)
        found += range[i] != (unsigned)word;
    found = __reduce_add_sync(FULL, found);
    if ((threadIdx.x & 31) == 0 && found) atomicAdd(out, (unsigned long long)found);
}
"""

DIGEST = _TEXT.replace("@RANGES@", str(RANGES)).replace("@K@", ", ".join(_K.split()))
