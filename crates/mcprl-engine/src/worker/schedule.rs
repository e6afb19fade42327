//! Schedules turns: a turn runs while its keys and values have reserved memory within the bound.
//!
//! Turns of older conversations have priority, so that conversations are finished before others start. For a waiting
//! turn, idle prompt pieces are evicted first, then conversations that have been inactive for longer than recomputing
//! them takes, then younger inactive ones. For a running turn that grows, older inactive conversations are evicted
//! too, and last the youngest running turns. Those wait, and recompute their tokens later. The oldest turn always
//! advances, so every turn ends. A turn that does not fit alone is refused.

use std::cmp::Reverse;

use super::{EngineError, Segment, Worker};
use crate::segments::EvictionOrder;

/// Tokens by which a running turn's reservation is ahead of it, if it may sample that many.
const AHEAD: usize = 64;

impl Worker {
    /// Enlarges the reservations of running turns that outgrew them, and reserves memory for waiting turns.
    pub(super) fn schedule(&mut self) {
        self.cancel_abandoned();
        let running: Vec<u64> = self.running.iter().copied().collect();
        for id in running {
            if self.running.contains(&id) {
                self.grow(id);
            }
        }
        while let Some(id) = self.waiting.first().copied() {
            if !self.admit(id) {
                break;
            }
        }
    }

    /// Cancels turns whose caller is gone.
    fn cancel_abandoned(&mut self) {
        let abandoned = |id: &u64| {
            let turn = self.conversations.get(id).and_then(|conversation| conversation.turn.as_ref());
            turn.is_none_or(|turn| turn.reply.is_closed())
        };
        let ids: Vec<u64> = self.running.iter().chain(&self.waiting).copied().filter(abandoned).collect();
        ids.into_iter().for_each(|id| _ = self.cancel(id));
    }

    /// Makes room for a turn of this conversation. With `any`, older inactive conversations are evicted too.
    fn make_room(&mut self, bytes: usize, conversation: u64, any: bool) -> bool {
        let Self { segments, conversations, running, work, .. } = self;
        let rank = |id: u64, segment: &Segment| {
            let inactive_since = conversations.get(&id)?.inactive_since;
            if id == conversation || running.contains(&id) {
                None
            } else if *work - inactive_since >= segment.computed() as u64 {
                Some(EvictionOrder::Inactive(inactive_since))
            } else {
                (any || id > conversation).then_some(EvictionOrder::Recent(Reverse(id)))
            }
        };
        segments.make_room(bytes, rank)
    }

    /// Reserves memory for a waiting turn. Returns `false` if it has to wait. Refuses it if it would not fit
    /// alone.
    fn admit(&mut self, id: u64) -> bool {
        let Some(path) = self.conversations.get(&id).map(|conversation| conversation.path.clone()) else {
            return self.waiting.remove(&id);
        };
        let bound = self.segments.bound;
        let needs = self.segments.path_bytes(&path, 0);
        if needs > bound {
            self.refuse(id, needs);
            return true;
        }
        let more = self.ahead(id, &path);
        self.segments.pin(&path);
        if !self.make_room(self.segments.missing_bytes(&path, more), id, self.running.is_empty()) {
            self.segments.unpin(&path);
            return false;
        }
        self.segments.reserve(&path, more);
        self.waiting.remove(&id);
        self.running.insert(id);
        true
    }

    /// Tokens by which a turn's reservation is to be ahead of it.
    fn ahead(&self, id: u64, path: &[usize]) -> usize {
        let turn = self.conversations.get(&id).and_then(|conversation| conversation.turn.as_ref());
        let ahead = turn.map_or(0, |turn| turn.remaining().min(AHEAD));
        if self.segments.path_bytes(path, ahead) > self.segments.bound { 0 } else { ahead }
    }

    fn grow(&mut self, id: u64) {
        let Some(conversation) = self.conversations.get(&id) else { return };
        let (path, number) = (conversation.path.clone(), conversation.segment);
        let Some(segment) = self.segments.get(number) else { return };
        if segment.is_reserved_for(self.segments.bytes_for(segment.tokens.len())) {
            return;
        }
        let needs = self.segments.path_bytes(&path, 0);
        if needs > self.segments.bound {
            self.refuse(id, needs);
            return;
        }
        let more = self.ahead(id, &path);
        while !self.make_room(self.segments.missing_bytes(&path, more), id, true) {
            let Some(youngest) = self.running.pop_last() else { return };
            self.preempt(youngest);
            if youngest == id {
                return;
            }
        }
        self.segments.reserve(&path, more);
    }

    /// Takes a running turn's reservation. The turn waits for another.
    fn preempt(&mut self, id: u64) {
        self.running.remove(&id);
        self.waiting.insert(id);
        if let Some(conversation) = self.conversations.get(&id) {
            self.segments.unpin(&conversation.path);
            self.segments.evict(conversation.segment);
        }
    }

    fn refuse(&mut self, id: u64, needs: usize) {
        let segment =
            self.conversations.get(&id).and_then(|conversation| self.segments.get(conversation.segment));
        let tokens = segment.map_or(0, Segment::end);
        let error = EngineError::Cache { tokens, needs, bound: self.segments.bound };
        if let Some(turn) = self.cancel(id) {
            // The receiver is gone if the episode was cancelled.
            _ = turn.reply.send(Err(error));
        }
    }
}
