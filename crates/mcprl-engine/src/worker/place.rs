//! The place of a conversation in the tree: the segments that are its tokens.

use std::collections::BTreeSet;

use super::{DecodeWorker, Segment, SequenceState};
use crate::segments::Needs;

impl DecodeWorker {
    /// Moves a conversation to the place of its last token. What others have said before is there already, with its keys
    /// and values.
    pub(super) fn place(&mut self, id: u64) {
        while let Some((position, token)) = self.next_token(id) {
            let leaf = self.conversations.get(&id).and_then(SequenceState::leaf);
            let end = leaf.and_then(|leaf| self.segments.get(leaf)).map_or(0, Segment::end);
            if let Some(leaf) = leaf.filter(|_| position < end) {
                let first = segment_first(&self.segments, leaf);
                match self.common(id, leaf, position) {
                    0 if self.split(leaf, position - first) => {}
                    0 => self.fork(id, first),
                    common => self.place_to(id, position + common),
                }
                continue;
            }
            match self.segments.child(leaf, token) {
                Some(child) => self.enter(id, child),
                None => self.extend(id, leaf.filter(|leaf| self.grows(id, *leaf, token))),
            }
        }
    }

    /// The first token of a conversation that has no place yet, and its position.
    fn next_token(&self, id: u64) -> Option<(usize, u32)> {
        let conversation = self.conversations.get(&id)?;
        Some((conversation.placed, *conversation.tokens.get(conversation.placed)?))
    }

    fn place_to(&mut self, id: u64, position: usize) {
        if let Some(conversation) = self.conversations.get_mut(&id) {
            conversation.placed = position;
        }
    }

    /// The number of tokens of a conversation from this position on that its last segment has, too.
    fn common(&self, id: u64, leaf: usize, position: usize) -> usize {
        let (Some(conversation), Some(segment)) = (self.conversations.get(&id), self.segments.get(leaf))
        else {
            return 0;
        };
        let own = &conversation.tokens[position..];
        segment.tokens[position - segment.first..].iter().zip(own).take_while(|(a, b)| a == b).count()
    }

    /// Whether this conversation's next token makes its last segment longer: no other conversation goes on from its end
    /// with another token.
    fn grows(&self, id: u64, leaf: usize, token: u32) -> bool {
        let Some(segment) = self.segments.get(leaf).filter(|segment| segment.can_grow()) else {
            return false;
        };
        segment.ends.iter().filter(|other| **other != id).all(|other| {
            self.conversations.get(other).is_some_and(|other| {
                other.placed < segment.end() || other.tokens.get(other.placed) == Some(&token)
            })
        })
    }

    /// Appends a conversation's tokens without a place, up to the end of a prompt's piece, to its last segment or to a new
    /// one.
    fn extend(&mut self, id: u64, leaf: Option<usize>) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        let placed = conversation.placed;
        let piece = conversation.pieces.iter().find(|end| **end > placed).copied();
        let end = piece.unwrap_or(conversation.tokens.len());
        let tokens = conversation.tokens[placed..end].to_vec();
        conversation.placed = end;
        if let Some(segment) = leaf.and_then(|leaf| self.segments.get_mut(leaf)) {
            segment.tokens.extend(tokens);
            return;
        }
        let number = self.segments.add(conversation.leaf(), tokens, piece.is_some());
        self.enter(id, number);
    }

    fn enter(&mut self, id: u64, number: usize) {
        let is_running = self.running.contains(&id);
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        conversation.path = conversation.path.iter().copied().chain([number]).collect();
        self.segments.enter(number, id, is_running);
    }

    /// Takes a conversation out of its last segment.
    pub(super) fn leave(&mut self, id: u64) {
        let is_running = self.running.contains(&id);
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        let Some((leaf, above)) = conversation.path.split_last() else { return };
        let leaf = *leaf;
        conversation.path = above.into();
        let first = segment_first(&self.segments, leaf);
        conversation.placed = conversation.placed.min(first);
        self.segments.leave(leaf, id, is_running);
        self.trim(leaf);
    }

    /// Gives a conversation segments of its own from this position on, at which one of its segments begins or can be split.
    /// Others may have the same tokens.
    pub(super) fn fork(&mut self, id: u64, position: usize) {
        let Some(conversation) = self.conversations.get(&id) else { return };
        let mut position = position;
        if let Some(leaf) = conversation.leaf() {
            let first = segment_first(&self.segments, leaf);
            if position > first && !self.split(leaf, position - first) {
                position = first;
            }
        }
        self.leave_to(id, position);
        self.extend(id, None);
    }

    /// Takes a conversation out of the segments that begin at this position or later.
    fn leave_to(&mut self, id: u64, position: usize) {
        while let Some(leaf) = self.conversations.get(&id).and_then(SequenceState::leaf)
            && segment_first(&self.segments, leaf) >= position
        {
            self.leave(id);
        }
        if let Some(conversation) = self.conversations.get_mut(&id) {
            conversation.placed = conversation.placed.min(position);
        }
    }

    /// Drops a conversation's tokens from this position on.
    pub(super) fn truncate(&mut self, id: u64, position: usize) {
        let Some(conversation) = self.conversations.get_mut(&id) else { return };
        conversation.tokens.truncate(position);
        if conversation.placed <= position {
            return;
        }
        self.leave_to(id, position);
        if let Some(leaf) = self.conversations.get(&id).and_then(SequenceState::leaf) {
            self.trim(leaf);
        }
    }

    /// Splits a segment where its conversations no longer need it, so that the rest is idle.
    fn trim(&mut self, number: usize) {
        let Some(segment) = self.segments.get(number).filter(|segment| !segment.has_children()) else {
            return;
        };
        let placed = |id: &u64| self.conversations.get(id).map(|conversation| conversation.placed);
        let Some(needed) = segment.ends.iter().filter_map(placed).max() else { return };
        let (at, is_pinned) = (needed - segment.first, segment.is_pinned());
        if at < segment.tokens.len() && !self.split(number, at) && !is_pinned {
            self.segments.evict(number);
            self.split(number, at);
        }
    }

    /// Splits a segment, if that is possible.
    fn split(&mut self, number: usize, at: usize) -> bool {
        let Self { segments, conversations, running, .. } = self;
        let position = segment_first(segments, number) + at;
        let below = |conversation: &SequenceState| {
            conversation.placed > position && conversation.path.contains(&number)
        };
        let needs = || {
            let below = || conversations.iter().filter(|(_, conversation)| below(conversation));
            let ends = |(id, conversation): (&u64, &SequenceState)| {
                (conversation.leaf() == Some(number)).then_some(*id)
            };
            Needs {
                users: below().count(),
                pins: below().filter(|(id, _)| running.contains(id)).count(),
                ends: below().filter_map(ends).collect::<BTreeSet<u64>>(),
            }
        };
        let Some(lower) = segments.split(number, at, needs) else { return false };
        for conversation in conversations.values_mut().filter(|conversation| below(conversation)) {
            let with_lower = |segment: &usize| match *segment == number {
                true => vec![number, lower],
                false => vec![*segment],
            };
            conversation.path = conversation.path.iter().flat_map(with_lower).collect();
        }
        segments.remove_unused(lower);
        true
    }
}

fn segment_first(segments: &crate::segments::Segments, number: usize) -> usize {
    segments.get(number).map_or(0, |segment| segment.first)
}
