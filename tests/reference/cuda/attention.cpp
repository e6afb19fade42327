// attention.cu against attention in double precision, over a tree of segments: directly and in parts, forward and backward.
#include "emulator.hpp"

#include "../../../crates/mcprl-engine/src/model/ops/cuda/attention.cu"

struct Segment {
    u32 start, end, below, first;  // `below`: the end of the rows below it.
};

const std::vector<Segment> SEGMENTS = {{0, 70, 120, 0}, {70, 85, 106, 70}, {85, 96, 96, 85}, {96, 106, 106, 85}, {106, 120, 120, 70}};
const u32 ROWS = 120, KV = 2, GROUP = 3, HEADS = KV * GROUP;

std::vector<half_t> halves(const std::vector<float> &values) {
    std::vector<half_t> out;
    for (float value : values) out.push_back(narrow(value));
    return out;
}

struct Doubles {
    std::vector<double> out, lse, dq, dk, dv;
};

Doubles expected(const std::vector<half_t> &q, const std::vector<half_t> &k, const std::vector<half_t> &v,
                 const std::vector<half_t> &dout, const std::vector<u32> &positions) {
    size_t wide = ROWS * HEADS * DIM, narrow = ROWS * KV * DIM;
    Doubles all{std::vector<double>(wide), std::vector<double>(ROWS * HEADS), std::vector<double>(wide), std::vector<double>(narrow), std::vector<double>(narrow)};
    auto sees = [&](u32 row, u32 key) {
        for (auto &of : SEGMENTS)
            if (key >= of.start && key < of.end) return row >= of.start && row < of.below && positions[key] <= positions[row];
        return false;
    };
    for (u32 row = 0; row < ROWS; row++)
        for (u32 head = 0; head < HEADS; head++) {
            size_t own = (row * HEADS + head) * DIM;
            auto at = [&](u32 key) { return size_t(key * KV + head / GROUP) * DIM; };
            std::vector<double> share(ROWS);
            double total = 0;
            for (u32 key = 0; key < ROWS; key++) {
                if (!sees(row, key)) continue;
                double score = 0;
                for (u32 i = 0; i < DIM; i++) score += double(widen(q[own + i])) * widen(k[at(key) + i]);
                total += share[key] = std::exp(score);
            }
            all.lse[row * HEADS + head] = std::log(total);
            for (u32 key = 0; key < ROWS; key++) {
                share[key] /= total;
                for (u32 i = 0; i < DIM; i++) all.out[own + i] += share[key] * widen(v[at(key) + i]);
            }
            double along = 0;
            for (u32 i = 0; i < DIM; i++) along += all.out[own + i] * widen(dout[own + i]);
            for (u32 key = 0; key < ROWS; key++) {
                double worth = 0;
                for (u32 i = 0; i < DIM; i++) worth += double(widen(dout[own + i])) * widen(v[at(key) + i]);
                double slope = share[key] * (worth - along);
                for (u32 i = 0; i < DIM; i++) {
                    all.dq[own + i] += slope * widen(k[at(key) + i]);
                    all.dk[at(key) + i] += slope * widen(q[own + i]);
                    all.dv[at(key) + i] += share[key] * widen(dout[own + i]);
                }
            }
        }
    return all;
}

int main() {
    std::vector<u32> positions(ROWS);
    for (auto &of : SEGMENTS)
        for (u32 row = of.start; row < of.end; row++) positions[row] = of.first + row - of.start;
    auto q = halves(normal(ROWS * HEADS * DIM, 2 / std::sqrt(float(DIM)))), k = halves(normal(ROWS * KV * DIM));
    auto v = halves(normal(ROWS * KV * DIM));
    // What is rounded in between has the format's precision.
    const double most = BF16 ? 6e-3 : 1e-3;
    auto dout_values = normal(ROWS * HEADS * DIM);
    auto dout = halves(dout_values);
    for (size_t i = 0; i < dout.size(); i++) dout_values[i] = widen(dout[i]);
    Doubles want = expected(q, k, v, dout, positions);
    std::vector<float> out(want.out.size()), lse(want.lse.size());

    // Each row once, as in training. Keys are rows of one matrix.
    std::vector<Item> items;
    std::vector<Piece> pieces;
    for (u32 start = 0, step = 64 / GROUP; start < ROWS; start += step) {
        u32 end = min(ROWS, start + step);
        Item item{start, end - start, u32(pieces.size()), 0, start};
        for (auto &of : SEGMENTS) {
            u32 seen = 0;
            for (u32 row = max(start, of.start); row < min(end, of.below); row++) seen = max(seen, min(of.end - of.start, positions[row] + 1 - of.first));
            if (seen) pieces.push_back({0, of.start, seen, of.first - of.start, of.start, of.below}), item.pieces++;
        }
        items.push_back(item);
    }
    launch(items.size(), KV, 128, [&] { attend(q.data(), nullptr, k.data(), nullptr, v.data(), positions.data(), items.data(), pieces.data(), out.data(), lse.data(), KV, GROUP); });
    check("attention", out, want.out, most);
    check("log-sum-exp", lse, want.lse, 1e-5);

    std::vector<float> along(ROWS * HEADS), dq(want.dq.size()), dk(want.dk.size()), dv(want.dv.size());
    launch((ROWS * HEADS + 3) / 4, 1, 128, [&] { dots(out.data(), dout_values.data(), along.data(), ROWS * HEADS); });
    launch(items.size(), KV, 128, [&] { query_gradient(q.data(), dout.data(), k.data(), v.data(), positions.data(), items.data(), pieces.data(), lse.data(), along.data(), dq.data(), KV, GROUP, 1); });
    check("gradient of queries", dq, want.dq, most);
    std::vector<Keys> tiles;
    std::vector<Sum> sums;
    for (auto &of : SEGMENTS)
        for (u32 key = of.start; key < of.end; key += KEYS) {
            u32 count = min(u32(KEYS), of.end - key), from = tiles.size();
            for (u32 row = key; row < of.below; row += 50) tiles.push_back({key, count, of.first + key - of.start, row, min(of.below, row + 50), u32(tiles.size())});
            sums.push_back({key, count, from, u32(tiles.size())});
        }
    std::vector<float> key_sums(tiles.size() * KV * KEYS * DIM), value_sums(key_sums.size());
    launch(tiles.size(), KV, 128, [&] { key_gradients(q.data(), dout.data(), k.data(), v.data(), positions.data(), tiles.data(), lse.data(), along.data(), key_sums.data(), value_sums.data(), KV, GROUP); });
    launch(sums.size(), KV, 128, [&] { sum_slots(key_sums.data(), value_sums.data(), sums.data(), dk.data(), dv.data(), KV); });
    check("gradient of keys", dk, want.dk, most);
    check("gradient of values", dv, want.dv, most);

    // In parts that are merged, as in sampling. Each segment has an address of its own.
    std::vector<u64> keys, values;
    for (auto &of : SEGMENTS) keys.push_back(u64(&k[of.start * KV * DIM])), values.push_back(u64(&v[of.start * KV * DIM]));
    items.clear(), pieces.clear();
    std::vector<std::vector<u32>> of_rows(ROWS);
    u32 slots = 0;
    for (u32 index = 0; index < SEGMENTS.size(); index++) {
        auto &of = SEGMENTS[index];
        for (u32 start = of.start, step = 16 / GROUP; start < of.below; start += step)
            for (u32 key = 0; key < of.end - of.start; key += 40) {
                u32 end = min(of.below, start + step);
                items.push_back({start, end - start, u32(pieces.size()), 1, slots});
                pieces.push_back({index, key, min(40u, of.end - of.start - key), of.first, of.start, of.below});
                for (u32 row = start; row < end; row++) of_rows[row].push_back(slots++);
            }
    }
    std::vector<u32> starts{0}, parts;
    for (auto &of : of_rows) parts.insert(parts.end(), of.begin(), of.end()), starts.push_back(parts.size());
    std::vector<float> part_out(slots * HEADS * DIM), part_lse(slots * HEADS), merged(out.size());
    launch(items.size(), KV, 32, [&] { attend(q.data(), keys.data(), nullptr, values.data(), nullptr, positions.data(), items.data(), pieces.data(), part_out.data(), part_lse.data(), KV, GROUP); });
    launch((ROWS * HEADS + 3) / 4, 1, 128, [&] { merge(part_out.data(), part_lse.data(), starts.data(), parts.data(), merged.data(), ROWS, HEADS); });
    check("attention in parts", merged, want.out, most);
}
