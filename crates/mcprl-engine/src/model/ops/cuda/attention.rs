//! Attention by the kernels of `attention.cu`: what each block computes, and their launches.

use candle_core::{DType, Result, Tensor, bail};

use super::{Argument, Launch, Source, address, address_of, empty, uninitialised_as, upload, weight_address};
use crate::model::{
    kernels::{Attention, Heads},
    ops::{
        Seen,
        plan::{Items, KeyTiles, Parts, TILE_KEYS},
    },
};

/// Head widths that the kernels take.
pub const DIMS: [usize; 4] = [32, 64, 96, 128];
/// Query heads of a key-value head that fit a block.
const MOST_GROUP: usize = 64;
/// Threads of a block of several warps.
const THREADS: u32 = 128;

/// Whether the kernels take heads of this shape and this type of keys.
pub fn takes_attention(q: &Tensor, heads: Heads, dtype: DType) -> bool {
    super::takes(q)
        && matches!(dtype, DType::BF16 | DType::F16)
        && DIMS.contains(&heads.dim)
        && heads.query / heads.kv <= MOST_GROUP
}

/// What does not change from layer to layer.
#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: Heads,
    scale: f32,
    dtype: DType,
}

impl Shape {
    fn source(self) -> Source {
        Source::Attention { dim: self.heads.dim, bf16: self.dtype == DType::BF16 }
    }

    fn group(self) -> usize {
        self.heads.query / self.heads.kv
    }

    /// The last arguments of most kernels: key-value heads, and query heads of each.
    fn counts(self) -> [Argument; 2] {
        [(self.heads.kv as u32).into(), (self.group() as u32).into()]
    }

    fn run(self, like: &Tensor, launch: Launch, name: &'static str, arguments: &[Argument]) -> Result<()> {
        launch.run(like.device().as_cuda_device()?, self.source(), name, arguments)
    }

    fn half(self, tensor: &Tensor) -> Result<Argument> {
        weight_address(tensor).map(Argument::Wide)
    }

    /// `x · scale`, rounded.
    fn rounded(self, x: &Tensor, scale: f32) -> Result<Tensor> {
        let out = uninitialised_as(self.dtype, x.shape(), x)?;
        let pairs = x.elem_count() / 2;
        let arguments = [address(x)?, self.half(&out)?, (pairs as u64).into(), scale.into()];
        self.run(x, Launch::elements(pairs), "rounded", &arguments)?;
        Ok(out)
    }
}

fn words(tensor: &Tensor) -> Result<Argument> {
    Ok(address_of::<u32>(tensor)?.into())
}

/// Items on a device.
struct Uploaded {
    items: Tensor,
    pieces: Tensor,
    count: u32,
    threads: u32,
}

impl Uploaded {
    fn new(items: Items, like: &Tensor) -> Result<Self> {
        let (count, threads) = (items.count() as u32, 32 * items.warps as u32);
        Ok(Self { items: upload(items.items, like)?, pieces: upload(items.pieces, like)?, count, threads })
    }

    /// Attention of rounded queries to `out` and `lse`. `keys` and `values`: a table of addresses by segment, or 0 and one
    /// address.
    fn attend(
        &self,
        shape: Shape,
        (q, positions): (&Tensor, &Tensor),
        [keys, values]: [[Argument; 2]; 2],
        (out, lse): (&Tensor, &Tensor),
    ) -> Result<()> {
        let mut arguments = vec![shape.half(q)?];
        arguments.extend(keys.into_iter().chain(values));
        arguments.extend([words(positions)?, words(&self.items)?, words(&self.pieces)?]);
        arguments.extend([address(out)?, address(lse)?]);
        arguments.extend(shape.counts());
        let launch = Launch::new((self.count, shape.heads.kv as u32), self.threads);
        shape.run(q, launch, "attend", &arguments)
    }
}

/// The plan of one training batch, for all of its layers.
pub struct TreePlan {
    shape: Shape,
    positions: Tensor,
    items: Uploaded,
    /// Of keys with some rows, and of the sums over all rows.
    tiles: Tensor,
    sums: Tensor,
    slots: usize,
    sum_count: u32,
}

impl TreePlan {
    /// `starts`: the row of the first key of each of `spans`.
    pub fn new(
        positions: &[u32],
        spans: &[Seen],
        starts: &[usize],
        (attention, dtype): (Attention, DType),
        like: &Tensor,
    ) -> Result<Self> {
        let shape = Shape { heads: attention.heads, scale: attention.scale, dtype };
        let items = Uploaded::new(Items::of_tree(positions, spans, starts, shape.group()), like)?;
        let tiles = KeyTiles::new(spans, starts);
        let (slots, sum_count) = (tiles.slots, tiles.count() as u32);
        let (tiles, sums) = (upload(tiles.tiles, like)?, upload(tiles.sums, like)?);
        Ok(Self { shape, positions: upload(positions.to_vec(), like)?, items, tiles, sums, slots, sum_count })
    }

    /// Attention (`[rows, heads · dim]`) and the log-sum-exp of the scores (`[rows, heads]`).
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let shape = self.shape;
        let out = empty(q.shape(), q)?;
        let lse = empty((q.dims()[0], shape.heads.query), q)?;
        let q = shape.rounded(q, shape.scale)?;
        let (k, v) = (shape.rounded(k, 1.0)?, shape.rounded(v, 1.0)?);
        let both = [[0u64.into(), shape.half(&k)?], [0u64.into(), shape.half(&v)?]];
        self.items.attend(shape, (&q, &self.positions), both, (&out, &lse))?;
        Ok((out, lse))
    }

    /// Gradients of q, k and v.
    pub fn attend_backward(
        &self,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        (out, lse): (&Tensor, &Tensor),
        dout: &Tensor,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let shape = self.shape;
        let kv_heads = shape.heads.kv as u32;
        let count = lse.elem_count();
        let dots = empty(lse.shape(), lse)?;
        let arguments = [address(out)?, address(dout)?, address(&dots)?, (count as u32).into()];
        let warps = THREADS / 32;
        let launch = Launch::new(((count as u32).div_ceil(warps), 1), THREADS);
        shape.run(q, launch, "dots", &arguments)?;

        let (dq, dk, dv) = (empty(q.shape(), q)?, empty(k.shape(), k)?, empty(v.shape(), v)?);
        let (q, dout) = (shape.rounded(q, shape.scale)?, shape.rounded(dout, 1.0)?);
        let (k, v) = (shape.rounded(k, 1.0)?, shape.rounded(v, 1.0)?);
        let given =
            [shape.half(&q)?, shape.half(&dout)?, shape.half(&k)?, shape.half(&v)?, words(&self.positions)?];
        let (total, along) = (address(lse)?, address(&dots)?);

        let mut arguments = given.to_vec();
        arguments.extend([
            words(&self.items.items)?,
            words(&self.items.pieces)?,
            total,
            along,
            address(&dq)?,
        ]);
        arguments.extend(shape.counts());
        arguments.push(shape.scale.into());
        let launch = Launch::new((self.items.count, kv_heads), self.items.threads);
        shape.run(&q, launch, "query_gradient", &arguments)?;

        let room = (self.slots, shape.heads.kv, TILE_KEYS * shape.heads.dim);
        let (key_sums, value_sums) = (empty(room, &q)?, empty(room, &q)?);
        let mut arguments = given.to_vec();
        let written = [address(&key_sums)?, address(&value_sums)?];
        arguments.extend([words(&self.tiles)?, total, along, written[0], written[1]]);
        arguments.extend(shape.counts());
        let launch = Launch {
            grid: (self.slots as u32, kv_heads),
            threads: THREADS,
            shared: KeyTiles::shared_bytes(shape.heads.dim),
        };
        shape.run(&q, launch, "key_gradients", &arguments)?;
        let arguments =
            [written[0], written[1], words(&self.sums)?, address(&dk)?, address(&dv)?, kv_heads.into()];
        shape.run(&q, Launch::new((self.sum_count, kv_heads), THREADS), "sum_slots", &arguments)?;
        Ok((dq, dk, dv))
    }
}

/// The plan of one sampling step, for all of its layers.
pub struct StepPlan {
    shape: Shape,
    positions: Tensor,
    items: Vec<Uploaded>,
    /// Each row's segment, and its place there.
    segments: Tensor,
    places: Tensor,
    /// Where the parts of each row begin among `parts`.
    starts: Tensor,
    parts: Tensor,
    slots: usize,
}

impl StepPlan {
    pub fn new(
        positions: &[u32],
        spans: &[Seen],
        (attention, dtype): (Attention, DType),
        like: &Tensor,
    ) -> Result<Self> {
        let shape = Shape { heads: attention.heads, scale: attention.scale, dtype };
        let Parts { narrow, wide, starts, parts, slots } = Parts::new(positions, spans, shape.group());
        let (mut segments, mut places) = (vec![u32::MAX; positions.len()], vec![0; positions.len()]);
        for (index, (rows, first, keys)) in spans.iter().enumerate() {
            for row in rows.clone() {
                // The last that contains it is its own.
                let place = (positions[row] as usize).wrapping_sub(*first);
                if place < *keys {
                    (segments[row], places[row]) = (index as u32, place as u32);
                }
            }
        }
        if segments.contains(&u32::MAX) {
            bail!("a row is in none of the segments");
        }
        let lists = [narrow, wide].into_iter().filter(|items| items.count() > 0);
        Ok(Self {
            shape,
            positions: upload(positions.to_vec(), like)?,
            items: lists.map(|items| Uploaded::new(items, like)).collect::<Result<_>>()?,
            segments: upload(segments, like)?,
            places: upload(places, like)?,
            starts: upload(starts, like)?,
            parts: upload(parts, like)?,
            slots,
        })
    }

    /// Writes `k` and `v` of the rows to their places in the segments. Then attends to the segments: `[rows, heads ·
    /// dim]`. `table` has the addresses of the segments' keys, then of their values.
    pub fn attend(&self, (q, k, v): (&Tensor, &Tensor, &Tensor), table: Vec<i64>) -> Result<Tensor> {
        let shape = self.shape;
        let rows = q.dims()[0];
        let half = (table.len() / 2 * size_of::<i64>()) as u64;
        let table = upload(table, q)?;
        let first = address_of::<i64>(&table)?;
        let (keys_at, values_at): (Argument, Argument) = (first.into(), (first + half).into());
        let width = shape.heads.kv * shape.heads.dim;
        let arguments = [
            address(k)?,
            address(v)?,
            keys_at,
            values_at,
            words(&self.segments)?,
            words(&self.places)?,
            (width as u32).into(),
        ];
        shape.run(q, Launch::new((rows as u32, 1), THREADS), "append", &arguments)?;

        let part_out = empty((self.slots, shape.heads.query * shape.heads.dim), q)?;
        let part_lse = empty((self.slots, shape.heads.query), q)?;
        let out = empty(q.shape(), q)?;
        let q = shape.rounded(q, shape.scale)?;
        for list in &self.items {
            let both = [[keys_at, 0u64.into()], [values_at, 0u64.into()]];
            list.attend(shape, (&q, &self.positions), both, (&part_out, &part_lse))?;
        }
        let arguments = [
            address(&part_out)?,
            address(&part_lse)?,
            words(&self.starts)?,
            words(&self.parts)?,
            address(&out)?,
            (rows as u32).into(),
            (shape.heads.query as u32).into(),
        ];
        let warps = THREADS / 32;
        let blocks = ((rows * shape.heads.query) as u32).div_ceil(warps);
        shape.run(&q, Launch::new((blocks, 1), THREADS), "merge", &arguments)?;
        Ok(out)
    }
}
