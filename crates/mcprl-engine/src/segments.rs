//! The tree of given and sampled tokens: prompt pieces with conversations below them, and keys and values
//! within a bound.
//!
//! A segment keeps its tokens as long as it exists. Its keys and values may be evicted at any time and
//! recomputed. On the CPU they have the same bits, because a row depends only on the tokens before it. Cached
//! keys and values require those of the segment above, so only a leaf of the cached segments is evicted. A layer with
//! linear attention has a state instead of keys and values, which counts with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::model::{
    Decoder, Recurrence,
    ops::{Cache, KvFormat},
};

/// Prompt pieces that are kept although no conversation uses them.
const IDLE_PIECES: usize = 256;

/// A run of tokens with the keys and values computed so far.
#[derive(Default)]
pub struct Segment {
    parent: Option<usize>,
    /// Position of its first token.
    pub first: usize,
    pub tokens: Vec<u32>,
    /// Per layer.
    pub cache: Vec<Cache>,
    /// Tokens that were computed at least once.
    pub reached: usize,
    /// The conversation; none for a piece of a prompt.
    pub conversation: Option<u64>,
    /// Conversations and pieces directly below it.
    users: usize,
    /// Bytes reserved for its keys and values.
    reserved: usize,
    /// Users that have reserved bytes.
    reserving_users: usize,
    /// Running turns whose path contains it.
    pins: usize,
    /// When it was last pinned.
    used: u64,
}

impl Segment {
    /// Tokens whose keys and values are cached.
    pub fn computed(&self) -> usize {
        self.cache.first().map_or(0, Cache::tokens)
    }

    /// Bytes of its keys and values.
    fn bytes(&self) -> usize {
        self.cache.iter().map(Cache::bytes).sum()
    }

    /// Tokens to compute.
    pub fn waiting(&self) -> usize {
        self.tokens.len() - self.computed()
    }

    /// Position after its last token.
    pub fn end(&self) -> usize {
        self.first + self.tokens.len()
    }

    pub fn is_reserved_for(&self, bytes: usize) -> bool {
        self.reserved >= bytes
    }

    /// Whether its keys and values can be evicted now.
    fn is_leaf(&self) -> bool {
        self.reserved > 0 && self.pins == 0 && self.reserving_users == 0
    }
}

/// Segments by number. A parent's number is smaller than its children's.
pub struct Segments {
    /// Per layer: the format of keys and values, and its recurrence if it has one instead of them.
    layers: Vec<(KvFormat, Option<Recurrence>)>,
    by_number: BTreeMap<usize, Segment>,
    next: usize,
    /// Prompt pieces by parent and tokens.
    pieces: BTreeMap<(Option<usize>, Vec<u32>), usize>,
    /// Most bytes of keys and values.
    pub bound: usize,
    reserved: usize,
    clock: u64,
}

/// The order in which keys and values are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionOrder {
    /// Pieces that no conversation uses, the least recently used first.
    Idle(u64),
    /// Pieces whose conversations have nothing cached.
    Unused(u64),
    /// Conversations that have been inactive for long, the longest first.
    Inactive(u64),
    /// Other conversations, the youngest first.
    Recent(std::cmp::Reverse<u64>),
}

impl Segments {
    /// Segments for this decoder, with at most this many bytes of keys and values.
    pub fn new(decoder: &Decoder, bound: usize) -> Self {
        let config = &decoder.config;
        let of_layer = |layer| (decoder.kv_format(layer), config.recurrence(config.layer(layer)));
        Self {
            layers: (0..config.layers).map(of_layer).collect(),
            by_number: BTreeMap::new(),
            next: 0,
            pieces: BTreeMap::new(),
            bound,
            reserved: 0,
            clock: 0,
        }
    }

    pub fn get(&self, number: usize) -> Option<&Segment> {
        self.by_number.get(&number)
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut Segment> {
        self.by_number.get_mut(&number)
    }

    /// Bytes of the keys and values of this many tokens of one segment.
    pub fn bytes_for(&self, tokens: usize) -> usize {
        let of_layer = |(kv_format, recurrence): &(KvFormat, Option<Recurrence>)| match recurrence {
            Some(_) if tokens == 0 => 0,
            Some(recurrence) => recurrence.bytes(kv_format.by_kernels),
            None => kv_format.bytes_for(tokens),
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// Reserved bytes; never less than the cached bytes.
    #[cfg(test)]
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Cached bytes.
    #[cfg(test)]
    pub fn cached_bytes(&self) -> usize {
        self.by_number.values().map(Segment::bytes).sum()
    }

    /// The segment of a prompt piece. Creates it if it is new.
    pub fn piece(&mut self, parent: Option<usize>, tokens: &[u32]) -> usize {
        let key = (parent, tokens.to_vec());
        if let Some(number) = self.pieces.get(&key) {
            return *number;
        }
        let number = self.add(parent, tokens.to_vec(), None);
        self.pieces.insert(key, number);
        number
    }

    pub fn add(&mut self, parent: Option<usize>, tokens: Vec<u32>, conversation: Option<u64>) -> usize {
        let first = parent.and_then(|parent| self.by_number.get_mut(&parent)).map_or(0, |parent| {
            parent.users += 1;
            parent.end()
        });
        let number = self.next;
        self.next += 1;
        let segment = Segment {
            parent,
            first,
            tokens,
            cache: self.empty(),
            conversation,
            used: self.clock,
            ..Segment::default()
        };
        self.by_number.insert(number, segment);
        number
    }

    fn empty(&self) -> Vec<Cache> {
        let of_layer = |(kv_format, recurrence): &(KvFormat, Option<Recurrence>)| match recurrence {
            Some(Recurrence::Delta(_)) if kv_format.by_kernels => Cache::Delta(None),
            Some(Recurrence::Delta(_)) => Cache::ComposedDelta(None),
            Some(Recurrence::Convolution(_)) => Cache::Convolution(None),
            None => kv_format.empty(),
        };
        self.layers.iter().map(of_layer).collect()
    }

    /// Removes a segment without children from the tree.
    pub fn remove(&mut self, number: usize) {
        self.evict(number);
        let parent = self.by_number.remove(&number).and_then(|segment| segment.parent);
        if let Some(parent) = parent.and_then(|parent| self.by_number.get_mut(&parent)) {
            parent.users -= 1;
        }
    }

    /// Removes unused prompt pieces beyond `IDLE_PIECES`, the least recently used first.
    pub fn remove_idle(&mut self) {
        while self.pieces.len() > IDLE_PIECES {
            let pieces = self.pieces.values().filter_map(|number| Some((number, self.get(*number)?)));
            let idle = pieces.filter(|(_, segment)| segment.users == 0);
            let Some(number) = idle.min_by_key(|(_, segment)| segment.used).map(|(number, _)| *number) else {
                return;
            };
            self.remove_piece(number);
        }
    }

    fn remove_piece(&mut self, number: usize) {
        self.pieces.retain(|_, piece| *piece != number);
        self.remove(number);
    }

    /// A segment and its ancestors, root first.
    pub fn path(&self, number: usize) -> Arc<[usize]> {
        let parent = |number: &usize| self.by_number.get(number)?.parent;
        let mut path: Vec<usize> = std::iter::successors(Some(number), parent).collect();
        path.reverse();
        path.into()
    }

    /// Bytes of a path's segments when all is computed and the last has grown by this many tokens.
    pub fn path_bytes(&self, path: &[usize], more: usize) -> usize {
        self.grown(path, more).map(|(_, bytes)| bytes).sum()
    }

    /// The part of [`Self::path_bytes`] that is not yet reserved.
    pub fn missing_bytes(&self, path: &[usize], more: usize) -> usize {
        let reserved = |number| self.by_number.get(&number).map_or(0, |segment| segment.reserved);
        self.grown(path, more).map(|(number, bytes)| bytes.saturating_sub(reserved(number))).sum()
    }

    fn grown(&self, path: &[usize], more: usize) -> impl Iterator<Item = (usize, usize)> {
        path.iter().enumerate().map(move |(depth, number)| {
            let tokens = self.by_number.get(number).map_or(0, |segment| segment.tokens.len());
            (*number, self.bytes_for(tokens + if depth + 1 == path.len() { more } else { 0 }))
        })
    }

    /// Reserves the bytes that are [`Self::missing_bytes`].
    pub fn reserve(&mut self, path: &[usize], more: usize) {
        for (number, bytes) in self.grown(path, more).collect::<Vec<_>>() {
            if self.by_number.get(&number).is_some_and(|segment| segment.reserved < bytes) {
                self.set_reserved(number, bytes);
            }
        }
    }

    /// Reduces a segment's reservation to its present size.
    pub fn shrink(&mut self, number: usize) {
        if let Some(segment) = self.by_number.get(&number) {
            self.set_reserved(number, segment.bytes());
        }
    }

    /// Drops a segment's keys and values. Its tokens wait to be recomputed.
    pub fn evict(&mut self, number: usize) {
        let empty = self.empty();
        if let Some(segment) = self.by_number.get_mut(&number) {
            segment.cache = empty;
            self.set_reserved(number, 0);
        }
    }

    pub fn evict_all(&mut self) {
        for number in self.by_number.keys().copied().collect::<Vec<_>>() {
            self.evict(number);
        }
    }

    fn set_reserved(&mut self, number: usize, bytes: usize) {
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        let before = std::mem::replace(&mut segment.reserved, bytes);
        self.reserved = self.reserved - before + bytes;
        let parent = segment.parent;
        if let Some(parent) = parent.and_then(|parent| self.by_number.get_mut(&parent)) {
            parent.reserving_users =
                parent.reserving_users + usize::from(bytes > 0) - usize::from(before > 0);
        }
    }

    /// Pins the segments that a running turn attends to.
    pub fn pin(&mut self, path: &[usize]) {
        self.clock += 1;
        for number in path {
            if let Some(segment) = self.by_number.get_mut(number) {
                segment.pins += 1;
                segment.used = self.clock;
            }
        }
    }

    pub fn unpin(&mut self, path: &[usize]) {
        for number in path {
            if let Some(segment) = self.by_number.get_mut(number) {
                segment.pins -= 1;
            }
        }
    }

    /// Evicts keys and values until this many more bytes fit. Evicts nothing if that is impossible.
    ///
    /// `rank` gives the eviction order of a conversation; none if it stays.
    pub fn make_room(&mut self, bytes: usize, rank: impl Fn(u64, &Segment) -> Option<EvictionOrder>) -> bool {
        if self.reserved + bytes <= self.bound {
            return true;
        }
        let of_conversation = |segment: &Segment| rank(segment.conversation?, segment);
        let stays = |segment: &Segment| {
            segment.pins > 0 || (segment.conversation.is_some() && of_conversation(segment).is_none())
        };
        // A segment that stays keeps its ancestors. Numbers decrease from children to parents.
        let mut kept = BTreeSet::new();
        let mut staying_bytes = 0;
        for (number, segment) in self.by_number.iter().rev().filter(|(_, segment)| segment.reserved > 0) {
            if stays(segment) || kept.contains(number) {
                staying_bytes += segment.reserved;
                kept.extend(segment.parent);
            }
        }
        if staying_bytes + bytes > self.bound {
            return false;
        }
        while self.reserved + bytes > self.bound {
            let ranked = |(number, segment): (&usize, &Segment)| {
                let rank = match (segment.conversation, segment.users) {
                    (Some(_), _) => of_conversation(segment)?,
                    (None, 0) => EvictionOrder::Idle(segment.used),
                    (None, _) => EvictionOrder::Unused(segment.used),
                };
                Some((rank, *number))
            };
            let leaves = self.by_number.iter().filter(|(_, segment)| segment.is_leaf());
            let Some((rank, number)) = leaves.filter_map(ranked).min() else { return false };
            match rank {
                EvictionOrder::Idle(_) => self.remove_piece(number),
                _ => self.evict(number),
            }
        }
        true
    }
}
