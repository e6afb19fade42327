//! Schedules turns: a turn runs while its keys and values have reserved memory within the bound.
//!
//! Turns of older conversations have priority, so that conversations are finished rather than begun. A
//! waiting turn takes the memory of idle prompt pieces first. Then it takes that of conversations that have
//! been inactive for longer than recomputing their own would take, and then that of younger inactive ones. A
//! running turn that grows may also take the memory of older inactive ones, and last that of the youngest
//! running turns. Those wait, and recompute their tokens later. The oldest turn always advances, so every
//! turn ends. A turn that does not fit alone is refused.

use std::cmp::Reverse;

use super::{
    EngineError,
    segments::{EvictionOrder, Segment},
    worker::Worker,
};

/// Tokens by which a running turn's reservation is ahead of it, if it may sample that many.
const AHEAD: usize = 64;

impl Worker {
    /// Enlarges the reservations of running turns that outgrew them, and reserves memory for waiting turns.
    pub(super) fn give_places(&mut self) {
        self.cancel_given_up();
        let running: Vec<u64> = self.running.iter().copied().collect();
        for id in running {
            if self.running.contains(&id) {
                self.grow(id);
            }
        }
        while let Some(id) = self.asking.first().copied() {
            if !self.admit(id) {
                break;
            }
        }
    }

    /// Cancels turns whose caller is gone.
    fn cancel_given_up(&mut self) {
        let given_up = |id: &u64| {
            let turn = self.conversations.get(id).and_then(|conversation| conversation.turn.as_ref());
            turn.is_none_or(|turn| turn.reply.is_closed())
        };
        let ids: Vec<u64> = self.running.iter().chain(&self.asking).copied().filter(given_up).collect();
        ids.into_iter().for_each(|id| _ = self.cancel(id));
    }

    /// Makes room for a turn of `asks`. With `any`, older inactive conversations are evicted too.
    fn make_room(&mut self, bytes: usize, asks: u64, any: bool) -> bool {
        let Self { segments, conversations, running, work, .. } = self;
        let rank = |id: u64, segment: &Segment| {
            let away_since = conversations.get(&id)?.away_since;
            if id == asks || running.contains(&id) {
                None
            } else if *work - away_since >= segment.computed() as u64 {
                Some(EvictionOrder::Cold(away_since))
            } else {
                (any || id > asks).then_some(EvictionOrder::Resting(Reverse(id)))
            }
        };
        segments.make_room(bytes, rank)
    }

    /// Reserves memory for a waiting turn. Returns `false` if it has to wait. Refuses it if it would not fit
    /// alone.
    fn admit(&mut self, id: u64) -> bool {
        let Some(path) = self.conversations.get(&id).map(|conversation| conversation.path.clone()) else {
            return self.asking.remove(&id);
        };
        let bound = self.segments.bound;
        let needs = self.segments.whole(&path, 0);
        if needs > bound {
            self.refuse(id, needs);
            return true;
        }
        let more = self.ahead(id, &path);
        self.segments.pin(&path);
        if !self.make_room(self.segments.missing(&path, more), id, self.running.is_empty()) {
            self.segments.unpin(&path);
            return false;
        }
        self.segments.reserve(&path, more);
        self.asking.remove(&id);
        self.running.insert(id);
        true
    }

    /// Tokens by which a turn's reservation is to be ahead of it.
    fn ahead(&self, id: u64, path: &[usize]) -> usize {
        let turn = self.conversations.get(&id).and_then(|conversation| conversation.turn.as_ref());
        let ahead = turn.map_or(0, |turn| turn.left().min(AHEAD));
        if self.segments.whole(path, ahead) > self.segments.bound { 0 } else { ahead }
    }

    fn grow(&mut self, id: u64) {
        let Some(conversation) = self.conversations.get(&id) else { return };
        let (path, number) = (conversation.path.clone(), conversation.segment);
        let Some(segment) = self.segments.get(number) else { return };
        if segment.is_reserved_for(self.segments.bytes_for(segment.tokens.len())) {
            return;
        }
        let needs = self.segments.whole(&path, 0);
        if needs > self.segments.bound {
            self.refuse(id, needs);
            return;
        }
        let more = self.ahead(id, &path);
        while !self.make_room(self.segments.missing(&path, more), id, true) {
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
        self.asking.insert(id);
        if let Some(conversation) = self.conversations.get(&id) {
            self.segments.unpin(&conversation.path);
            self.segments.give_up(conversation.segment);
        }
    }

    fn refuse(&mut self, id: u64, needs: usize) {
        let segment = self.conversations.get(&id).and_then(|asks| self.segments.get(asks.segment));
        let tokens = segment.map_or(0, Segment::end);
        let error = EngineError::Cache { tokens, needs, bound: self.segments.bound };
        if let Some(turn) = self.cancel(id) {
            // The receiver is gone if the episode was cancelled.
            _ = turn.reply.send(Err(error));
        }
    }
}
