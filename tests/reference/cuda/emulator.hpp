// Runs the kernels of crates/mcprl-engine/src/model/ops/cuda on the CPU: block by block, with a thread for each thread of a block. It has what
// these kernels use of CUDA, and says nothing of their speed, or of races that barriers of a whole block hide.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

using std::max;
using std::min;

#define EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __expf std::exp

struct float2 {
    float x, y;
};


inline float2 make_float2(float x, float y) { return {x, y}; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

struct Index {
    unsigned x, y;
};

inline thread_local Index threadIdx, blockIdx, blockDim;

/* The lanes of a warp exchange values here. */
struct Warp {
    std::barrier<> together{32};
    uint64_t words[32][6];
};

struct Block {
    std::barrier<> together;
    std::vector<std::unique_ptr<Warp>> warps;

    explicit Block(unsigned threads) : together(threads) {
        for (unsigned i = 0; i < threads / 32; i++) warps.push_back(std::make_unique<Warp>());
    }
};

inline thread_local Block *block;

inline Warp &warp() { return *block->warps[threadIdx.x / 32]; }
inline unsigned lane_of() { return threadIdx.x % 32; }
inline void __syncthreads() { block->together.arrive_and_wait(); }

/* Runs a kernel's call in every thread of a grid. */
template <class Kernel>
void launch(unsigned columns, unsigned rows, unsigned threads, Kernel kernel) {
    for (unsigned y = 0; y < rows; y++)
        for (unsigned x = 0; x < columns; x++) {
            Block own(threads);
            std::vector<std::thread> all;
            for (unsigned i = 0; i < threads; i++)
                all.emplace_back([&, i] {
                    threadIdx = {i, 0}, blockIdx = {x, y}, blockDim = {threads, 1}, block = &own;
                    kernel();
                });
            for (auto &thread : all) thread.join();
        }
}

template <class T>
T of_lane(T value, unsigned from) {
    T found;
    std::memcpy(warp().words[lane_of()], &value, sizeof value);
    warp().together.arrive_and_wait();
    std::memcpy(&found, warp().words[from], sizeof found);
    warp().together.arrive_and_wait();
    return found;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return of_lane(value, lane_of() ^ mask);
}

template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
    return of_lane(value, lane_of() >= unsigned(by) ? lane_of() - by : lane_of());
}

template <class T>
T *dynamic_shared() {
    static __align__(16) unsigned char bytes[1 << 18];
    return reinterpret_cast<T *>(bytes);
}

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// What attention.cu has in assembly.

#ifdef BF16
inline float widen(uint16_t bits) {
#if BF16
    uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
#else
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return float(half);
#endif
}

inline uint16_t narrow(float value) {
#if BF16
    uint32_t word;
    std::memcpy(&word, &value, 4);
    return (word + 0x7fff + ((word >> 16) & 1)) >> 16;
#else
    _Float16 half = _Float16(value);
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
#endif
}

inline uint32_t pack(float low, float high) { return narrow(low) | uint32_t(narrow(high)) << 16; }
inline float half_of(uint32_t pair, unsigned which) { return widen(pair >> 16 * which); }

/* mma.m16n8k16: lane 4 r + i has columns 2 i and 2 i + 1 of rows r and r + 8, and of the next eight columns. */
inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    Warp &own = warp();
    unsigned lane = lane_of();
    for (int i = 0; i < 4; i++) own.words[lane][i] = a[i];
    own.words[lane][4] = b0, own.words[lane][5] = b1;
    own.together.arrive_and_wait();
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (unsigned k = 0; k < 16; k++) {
            float of_a = half_of(own.words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
            sum += of_a * half_of(own.words[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
        }
        c[i] += sum;
    }
    own.together.arrive_and_wait();
}

inline void check_alignment(const void *address) {
    if (uintptr_t(address) % 16 == 0) return;
    fprintf(stderr, "an address is no multiple of 16\n");
    abort();
}

/* ldmatrix: lanes 8 j to 8 j + 7 give the rows of matrix j. */
inline void load(uint32_t out[4], const uint16_t *row, bool transposed = false) {
    check_alignment(row);
    Warp &own = warp();
    unsigned lane = lane_of();
    own.words[lane][0] = uintptr_t(row);
    own.together.arrive_and_wait();
    for (unsigned j = 0; j < 4; j++) {
        uint32_t values[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned of_row = lane / 4, column = lane % 4 * 2 + i;
            if (transposed) std::swap(of_row, column);
            values[i] = reinterpret_cast<const uint16_t *>(own.words[8 * j + of_row][0])[column];
        }
        out[j] = values[0] | values[1] << 16;
    }
    own.together.arrive_and_wait();
}

inline void load_transposed(uint32_t out[4], const uint16_t *row) { load(out, row, true); }

/* cp.async, which copies at once here. */
inline void copy(uint16_t *to, const uint16_t *from, bool valid) {
    check_alignment(to), check_alignment(from);
    if (valid) std::memcpy(to, from, 16);
    else std::memset(to, 0, 16);
}

inline void commit() {}
inline void wait_for_all_but_last() {}
#endif

// For tests.

inline std::mt19937 generator(7);

inline std::vector<float> normal(size_t count, float deviation = 1) {
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(count);
    for (auto &value : values) value = distribution(generator);
    return values;
}

/* Fails if ‖found − expected‖ / ‖expected‖ is larger than `most`. */
inline void check(const char *what, const std::vector<float> &found, const std::vector<double> &expected, double most) {
    double off = 0, size = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        off += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    double distance = std::sqrt(off / size);
    printf("%-28s %.1e\n", what, distance);
    if (distance <= most && found.size() == expected.size()) return;
    fprintf(stderr, "%s: more than %.0e\n", what, most);
    exit(1);
}
