//! The tree of the tokens of all conversations, and keys and values within a bound.
//!
//! Conversations whose tokens are the same so far are at the same place of the tree, so each distinct token has its keys
//! and values once. A segment is a run of tokens without a branch. Where conversations part, it is split.
//!
//! A segment keeps its tokens as long as a conversation needs them. Its keys and values may be evicted at any time and
//! recomputed. On the CPU they have the same bits, because a row depends only on the tokens before it. Cached
//! keys and values require those of the segment above, so only a leaf of the cached segments is evicted. A layer with
//! linear attention has a state instead of keys and values, which counts with them.
//!
//! Segments that no open conversation needs are idle. They stay for conversations to come, as far as they fit into
//! the memory that open conversations have needed at once.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Result;

use crate::{
    model::{
        Decoder, Recurrence,
        ops::{Cache, KvFormat},
    },
    sampling::Odds,
};

/// A run of tokens with the keys and values computed so far.
#[derive(Default)]
pub struct Segment {
    parent: Option<usize>,
    /// First tokens and numbers.
    children: BTreeSet<(u32, usize)>,
    /// Position of its first token.
    pub first: usize,
    pub tokens: Vec<u32>,
    /// The end of a prompt's piece. It does not grow.
    is_sealed: bool,
    /// Per layer.
    pub cache: Vec<Cache>,
    /// Tokens that were computed at least once.
    pub reached: usize,
    /// What comes after this many of its tokens, for conversations that arrive there later. They come with the keys and
    /// values.
    pub odds: BTreeMap<usize, Vec<Odds>>,
    /// Open conversations whose path contains it.
    users: usize,
    /// Those whose path ends in it.
    pub ends: BTreeSet<u64>,
    /// Bytes reserved for its keys and values.
    reserved: usize,
    /// Tokens that they are reserved for.
    room: usize,
    /// Children that have reserved bytes.
    reserving_children: usize,
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

    /// Tokens to make room for when keys and values are appended.
    pub fn expected(&self) -> usize {
        self.tokens.len().min(self.room)
    }

    /// Whether tokens can be appended without a branch, as far as the tree knows.
    pub fn can_grow(&self) -> bool {
        !self.is_sealed && self.children.is_empty()
    }

    pub fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    pub fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Whether one conversation at most needs it, and nothing below it is cached.
    pub fn is_private(&self) -> bool {
        self.users <= 1 && self.pins == 0 && self.reserving_children == 0
    }

    /// Whether its keys and values can be evicted now.
    fn is_leaf(&self) -> bool {
        self.reserved > 0 && self.pins == 0 && self.reserving_children == 0
    }
}

/// Who needs a part of a segment.
#[derive(Default)]
pub struct Needs {
    pub users: usize,
    pub pins: usize,
    pub ends: BTreeSet<u64>,
}

/// Segments by number.
pub struct Segments {
    /// Per layer: the format of keys and values, and its recurrence if it has one instead of them.
    layers: Vec<(KvFormat, Option<Recurrence>)>,
    by_number: BTreeMap<usize, Segment>,
    next: usize,
    /// First tokens and numbers of segments without a parent.
    roots: BTreeSet<(u32, usize)>,
    /// Most bytes of keys and values.
    pub bound: usize,
    reserved: usize,
    /// The part of the reserved bytes that is of idle segments.
    idle: usize,
    /// The most bytes that segments which are not idle had at once.
    peak: usize,
    clock: u64,
}

/// The order in which keys and values are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionOrder {
    /// Idle segments, the least recently used first.
    Idle(u64),
    /// Conversations that have been inactive for long, the longest first.
    Inactive(u64),
    /// Other conversations, the youngest first.
    Recent(std::cmp::Reverse<u64>),
}

/// The eviction order of segments that open conversations need. None stays.
pub type Ranks = BTreeMap<usize, Option<EvictionOrder>>;

impl Segments {
    /// Segments for this decoder, with at most this many bytes of keys and values.
    pub fn new(decoder: &Decoder, bound: usize) -> Self {
        let config = &decoder.config;
        let of_layer = |layer| (decoder.kv_format(layer), config.recurrence(config.layer(layer)));
        Self {
            layers: (0..config.layers).map(of_layer).collect(),
            by_number: BTreeMap::new(),
            next: 0,
            roots: BTreeSet::new(),
            bound,
            reserved: 0,
            idle: 0,
            peak: 0,
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

    fn siblings(&self, parent: Option<usize>) -> Option<&BTreeSet<(u32, usize)>> {
        parent.map_or(Some(&self.roots), |parent| Some(&self.get(parent)?.children))
    }

    fn siblings_mut(&mut self, parent: Option<usize>) -> Option<&mut BTreeSet<(u32, usize)>> {
        match parent {
            Some(parent) => Some(&mut self.by_number.get_mut(&parent)?.children),
            None => Some(&mut self.roots),
        }
    }

    /// The child that begins with this token, or the root that does.
    pub fn child(&self, parent: Option<usize>, token: u32) -> Option<usize> {
        let of_token = self.siblings(parent)?.range((token, 0)..).next();
        of_token.filter(|(first, _)| *first == token).map(|(_, number)| *number)
    }

    /// Adds a child. There may be another one with the same tokens.
    pub fn add(&mut self, parent: Option<usize>, tokens: Vec<u32>, is_sealed: bool) -> usize {
        let first = parent.and_then(|parent| self.get(parent)).map_or(0, Segment::end);
        let segment = Segment {
            parent,
            first,
            tokens,
            is_sealed,
            cache: self.empty(),
            used: self.clock,
            ..Segment::default()
        };
        self.insert(segment)
    }

    fn insert(&mut self, segment: Segment) -> usize {
        let number = self.next;
        self.next += 1;
        let (parent, token) = (segment.parent, segment.tokens.first().copied().unwrap_or_default());
        if let Some(siblings) = self.siblings_mut(parent) {
            siblings.insert((token, number));
        }
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

    /// Splits a segment after this many of its tokens. `below` is who needs the second part, which becomes a child and is
    /// returned.
    ///
    /// Returns none, and changes nothing, if the state of a layer after these tokens is gone, or two parts take more memory
    /// than there is.
    pub fn split(&mut self, number: usize, at: usize, below: impl FnOnce() -> Needs) -> Option<usize> {
        let segment = self.by_number.get(&number)?;
        let computed = segment.computed();
        let is_recurrent = self.layers.iter().any(|(_, recurrence)| recurrence.is_some());
        if at == 0 || at >= segment.tokens.len() || (is_recurrent && at < computed) {
            return None;
        }
        let rooms = [segment.room.min(at), segment.room.saturating_sub(at)];
        let mut bytes = rooms.map(|tokens| self.bytes_for(tokens));
        if computed <= at {
            bytes[0] = bytes[0].max(segment.bytes());
        }
        let reserved = self.reserved - segment.reserved + bytes[0] + bytes[1];
        if reserved > self.reserved && reserved > self.bound {
            return None;
        }
        let (empty, Needs { users, pins, ends }) = (self.empty(), below());
        let segment = self.by_number.get_mut(&number)?;
        let cache = if computed <= at {
            empty
        } else {
            let expected = rooms[1].min(segment.tokens.len() - at);
            let parts: Result<Vec<Cache>> =
                segment.cache.iter_mut().map(|cache| cache.split(at, expected)).collect();
            // A cache of which some layers are split is of no use.
            parts.unwrap_or(empty)
        };
        let is_split = computed <= at || cache.first().is_some_and(|cache| cache.tokens() > 0);
        let lower = Segment {
            parent: Some(number),
            children: std::mem::take(&mut segment.children),
            first: segment.first + at,
            tokens: segment.tokens.split_off(at),
            is_sealed: std::mem::take(&mut segment.is_sealed),
            cache,
            reached: segment.reached.saturating_sub(at),
            odds: segment.odds.split_off(&(at + 1)).into_iter().map(|(after, of)| (after - at, of)).collect(),
            users,
            pins,
            used: segment.used,
            reserving_children: std::mem::take(&mut segment.reserving_children),
            ends,
            ..Segment::default()
        };
        segment.reached = segment.reached.min(at);
        segment.ends.retain(|id| !lower.ends.contains(id));
        let children: Vec<usize> = lower.children.iter().map(|(_, number)| *number).collect();
        let lower = self.insert(lower);
        for child in children {
            if let Some(child) = self.by_number.get_mut(&child) {
                child.parent = Some(lower);
            }
        }
        if is_split {
            self.set_reserved(number, bytes[0], rooms[0]);
            self.set_reserved(lower, bytes[1], rooms[1]);
        } else {
            self.evict(number);
        }
        Some(lower)
    }

    /// A conversation's path now ends in this segment, which is below its end of before.
    pub fn enter(&mut self, number: usize, id: u64, is_running: bool) {
        let parent = self.by_number.get(&number).and_then(|segment| segment.parent);
        if let Some(parent) = parent.and_then(|parent| self.by_number.get_mut(&parent)) {
            parent.ends.remove(&id);
        }
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        segment.ends.insert(id);
        segment.users += 1;
        segment.pins += usize::from(is_running);
        if segment.users == 1 {
            self.idle -= segment.reserved;
            self.peak = self.peak.max(self.reserved - self.idle);
        }
        // A branch ends the growth of what is above.
        if let Some(parent) = parent.filter(|parent| self.get(*parent).is_some_and(|it| it.ends.is_empty())) {
            self.shrink(parent);
        }
    }

    /// The path of a conversation now ends above this segment.
    pub fn leave(&mut self, number: usize, id: u64, is_running: bool) {
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        segment.ends.remove(&id);
        segment.users -= 1;
        segment.pins -= usize::from(is_running);
        let (parent, is_idle) = (segment.parent, segment.users == 0);
        let is_empty = segment.computed() == 0 && segment.is_leaf();
        if is_idle {
            self.idle += segment.reserved;
        }
        if let Some(parent) = parent.and_then(|parent| self.by_number.get_mut(&parent)) {
            parent.ends.insert(id);
        }
        match is_idle && is_empty {
            true => self.evict(number),
            false => self.remove_unused(number),
        }
    }

    /// Removes a segment that nobody needs, if it has nothing cached, and those above it that only it needed.
    pub fn remove_unused(&mut self, number: usize) {
        let mut next = Some(number);
        while let Some(number) = next {
            let is_unused = |segment: &&Segment| {
                segment.users == 0 && segment.reserved == 0 && segment.children.is_empty()
            };
            let Some(segment) = self.get(number).filter(is_unused) else { return };
            let (parent, token) = (segment.parent, segment.tokens.first().copied().unwrap_or_default());
            self.by_number.remove(&number);
            if let Some(siblings) = self.siblings_mut(parent) {
                siblings.remove(&(token, number));
            }
            next = parent;
        }
    }

    /// Bytes of a path's segments when all is computed up to this position and the last has grown by `more` tokens.
    pub fn path_bytes(&self, path: &[usize], end: usize, more: usize) -> usize {
        self.grown(path, end, more).map(|(_, tokens)| self.bytes_for(tokens)).sum()
    }

    /// The part of [`Self::path_bytes`] that is not yet reserved.
    pub fn missing_bytes(&self, path: &[usize], end: usize, more: usize) -> usize {
        let missing = |(number, tokens)| {
            let segment = self.by_number.get(&number);
            match segment.is_some_and(|segment| segment.room >= tokens) {
                true => 0,
                false => self.bytes_for(tokens).saturating_sub(segment.map_or(0, |segment| segment.reserved)),
            }
        };
        self.grown(path, end, more).map(missing).sum()
    }

    /// Whether room is reserved for a path's tokens up to this position.
    pub fn is_reserved(&self, path: &[usize], end: usize) -> bool {
        self.grown(path, end, 0)
            .all(|(number, tokens)| self.get(number).is_none_or(|segment| segment.room >= tokens))
    }

    fn grown(&self, path: &[usize], end: usize, more: usize) -> impl Iterator<Item = (usize, usize)> {
        path.iter().enumerate().map(move |(depth, number)| {
            let tokens = self.by_number.get(number).map_or(0, |segment| match depth + 1 == path.len() {
                true => end - segment.first + more,
                false => segment.tokens.len(),
            });
            (*number, tokens)
        })
    }

    /// Reserves the bytes that are [`Self::missing_bytes`].
    pub fn reserve(&mut self, path: &[usize], end: usize, more: usize) {
        for (number, tokens) in self.grown(path, end, more).collect::<Vec<_>>() {
            if let Some(segment) = self.by_number.get(&number).filter(|segment| segment.room < tokens) {
                let bytes = self.bytes_for(tokens).max(segment.reserved);
                self.set_reserved(number, bytes, tokens);
            }
        }
        self.drop_idle();
    }

    /// Reduces a segment's reservation to its tokens.
    pub fn shrink(&mut self, number: usize) {
        if let Some(segment) = self.by_number.get(&number).filter(|segment| segment.reserved > 0) {
            let tokens = segment.tokens.len();
            let bytes = segment.bytes().max(self.bytes_for(tokens)).min(segment.reserved);
            self.set_reserved(number, bytes, segment.room.min(tokens));
        }
    }

    /// Drops a segment's keys and values. If it is needed, its tokens wait to be recomputed.
    pub fn evict(&mut self, number: usize) {
        let empty = self.empty();
        if let Some(segment) = self.by_number.get_mut(&number) {
            segment.cache = empty;
            segment.odds.clear();
            self.set_reserved(number, 0, 0);
            self.remove_unused(number);
        }
    }

    pub fn evict_all(&mut self) {
        for number in self.by_number.keys().copied().collect::<Vec<_>>() {
            self.evict(number);
        }
    }

    /// Reserves this many bytes for this many tokens.
    fn set_reserved(&mut self, number: usize, bytes: usize, tokens: usize) {
        let Some(segment) = self.by_number.get_mut(&number) else { return };
        segment.room = tokens;
        let before = std::mem::replace(&mut segment.reserved, bytes);
        self.reserved = self.reserved - before + bytes;
        if segment.users == 0 {
            self.idle = self.idle - before + bytes;
        }
        self.peak = self.peak.max(self.reserved - self.idle);
        let parent = segment.parent;
        if let Some(parent) = parent.and_then(|parent| self.by_number.get_mut(&parent)) {
            parent.reserving_children =
                parent.reserving_children + usize::from(bytes > 0) - usize::from(before > 0);
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

    /// Evicts idle segments, the least recently used first, until all fit into the peak of the others.
    pub fn drop_idle(&mut self) {
        while self.idle > 0 && self.reserved > self.peak {
            let idle = self.by_number.iter().filter(|(_, segment)| segment.users == 0 && segment.is_leaf());
            let Some((_, number)) = idle.map(|(number, segment)| (segment.used, *number)).min() else {
                return;
            };
            self.evict(number);
        }
    }

    /// Evicts keys and values until this many more bytes fit. Evicts nothing if that is impossible.
    pub fn make_room(&mut self, bytes: usize, ranks: impl FnOnce(&Self) -> Ranks) -> bool {
        if self.reserved.saturating_add(bytes) <= self.bound {
            return true;
        }
        let ranks = ranks(self);
        let rank = |number: &usize, segment: &Segment| match ranks.get(number) {
            Some(rank) => *rank,
            None => Some(EvictionOrder::Idle(segment.used)),
        };
        // A segment that stays keeps its ancestors.
        let mut kept = BTreeSet::new();
        for (number, segment) in self.by_number.iter().filter(|(_, segment)| segment.reserved > 0) {
            if segment.pins > 0 || rank(number, segment).is_none() {
                let mut next = Some(*number);
                while let Some(number) = next.filter(|number| kept.insert(*number)) {
                    next = self.get(number).and_then(|segment| segment.parent);
                }
            }
        }
        let reserved = |number: &usize| self.get(*number).map_or(0, |segment| segment.reserved);
        if kept.iter().map(reserved).sum::<usize>() + bytes > self.bound {
            return false;
        }
        while self.reserved + bytes > self.bound {
            let leaves = self.by_number.iter().filter(|(_, segment)| segment.is_leaf());
            let ranked = leaves.filter_map(|(number, segment)| Some((rank(number, segment)?, *number)));
            let Some((_, number)) = ranked.min() else { return false };
            self.evict(number);
        }
        true
    }
}

#[cfg(test)]
impl Segments {
    /// Checks the counts against those of these paths, each with whether its turn is running.
    pub fn check(&self, paths: &BTreeMap<u64, (Vec<usize>, bool)>) {
        let of = |filter: &dyn Fn(&Segment) -> bool| -> usize {
            self.by_number.values().filter(|s| filter(s)).map(|s| s.reserved).sum()
        };
        assert_eq!(self.reserved, of(&|_| true), "reserved");
        assert_eq!(self.idle, of(&|s| s.users == 0), "idle");
        assert!(self.reserved - self.idle <= self.peak && self.reserved <= self.bound, "peak, bound");
        for (number, s) in &self.by_number {
            let on = |running: bool| {
                paths.values().filter(|(p, r)| p.contains(number) && (*r || !running)).count()
            };
            assert_eq!((s.users, s.pins), (on(false), on(true)), "users, pins of {number}");
            let ends: BTreeSet<u64> =
                paths.iter().filter(|(_, (p, _))| p.last() == Some(number)).map(|(id, _)| *id).collect();
            assert_eq!(s.ends, ends, "ends of {number}");
            assert!(s.bytes() <= s.reserved, "{number}: {} cached, {} reserved", s.bytes(), s.reserved);
            assert!(s.computed() <= s.tokens.len() && !s.tokens.is_empty());
            assert!(s.users > 0 || s.reserved > 0 || s.has_children(), "{number} is of no use");
            let children: Vec<&Segment> = s.children.iter().map(|(_, n)| &self.by_number[n]).collect();
            assert_eq!(s.reserving_children, children.iter().filter(|c| c.reserved > 0).count());
            for child in children {
                assert_eq!((child.parent, child.first), (Some(*number), s.end()));
                assert!(child.computed() == 0 || s.waiting() == 0, "a gap above");
            }
        }
    }
}
