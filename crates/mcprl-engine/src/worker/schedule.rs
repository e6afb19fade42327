//! Schedules turns: a turn runs while its keys and values have reserved memory within the bound.
//!
//! Turns of older conversations have priority, so that conversations are finished before others start. For a waiting
//! turn, idle segments are evicted first, then conversations that have been inactive for longer than recomputing
//! them takes, then younger inactive ones. For a running turn that grows, older inactive conversations are evicted
//! too, and last the youngest running turns. Those wait, and recompute their tokens later. The oldest turn always
//! advances, so every turn ends. A turn that does not fit alone is refused.

use std::cmp::Reverse;

use super::{DecodeWorker, EngineError, Segment, Segments, SequenceState};
use crate::segments::{EvictionOrder, Ranks};

/// Tokens by which a running turn's reservation is ahead of it, if it may sample that many.
const AHEAD: usize = 64;

impl DecodeWorker {
    /// Moves running turns to their places, with memory for them, and reserves memory for waiting turns.
    pub(super) fn schedule(&mut self) {
        self.cancel_abandoned();
        for id in self.running.iter().copied().collect::<Vec<_>>() {
            self.advance(id);
        }
        while let Some(id) = self.waiting.first().copied() {
            if !self.admit(id) {
                break;
            }
            self.advance(id);
        }
    }

    /// Moves a running turn to where a token has to be computed for it: as far as others have been, it draws from the odds
    /// that they left.
    fn advance(&mut self, id: u64) {
        while self.running.contains(&id) {
            self.place(id);
            self.grow(id);
            let Some(conversation) = self.conversations.get(&id).filter(|_| self.running.contains(&id))
            else {
                return;
            };
            if self.waiting_tokens(conversation).sum::<usize>() > 0 {
                return;
            }
            let last = conversation.placed.saturating_sub(1);
            match self.draw_from_odds(id) {
                Some(drawn) => self.add_token(id, Ok(drawn)),
                // The row of its last token is computed again.
                None => self.fork(id, last),
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
        let rank = |id: u64, inactive_since: u64, segment: &Segment| {
            if id == conversation || running.contains(&id) {
                None
            } else if *work - inactive_since >= segment.computed() as u64 {
                Some(EvictionOrder::Inactive(inactive_since))
            } else {
                (any || id > conversation).then_some(EvictionOrder::Recent(Reverse(id)))
            }
        };
        // A segment is evicted as late as the last of its conversations.
        let ranks = |segments: &Segments| {
            let mut ranks = Ranks::new();
            for (id, conversation) in &*conversations {
                for number in &*conversation.path {
                    let Some(segment) = segments.get(*number) else { continue };
                    let own = rank(*id, conversation.inactive_since, segment);
                    let of_all = ranks.entry(*number).or_insert(own);
                    *of_all = of_all.zip(own).map(|(a, b)| a.max(b));
                }
            }
            ranks
        };
        segments.make_room(bytes, ranks)
    }

    /// Reserves memory for a waiting turn. Returns `false` if it has to wait. Refuses it if it would not fit
    /// alone.
    fn admit(&mut self, id: u64) -> bool {
        self.place(id);
        if !self.fits(id) {
            return true;
        }
        let Some(conversation) = self.conversations.get(&id) else {
            return self.waiting.remove(&id);
        };
        let (path, end) = (conversation.path.clone(), conversation.placed);
        let more = self.ahead(id, &path, end);
        self.segments.pin(&path);
        if !self.make_room(self.segments.missing_bytes(&path, end, more), id, self.running.is_empty()) {
            self.segments.unpin(&path);
            return false;
        }
        self.segments.reserve(&path, end, more);
        self.waiting.remove(&id);
        self.running.insert(id);
        true
    }

    /// Whether a turn fits into the bound alone. Refuses it if not.
    fn fits(&mut self, id: u64) -> bool {
        let needs = |worker: &Self| {
            let conversation = worker.conversations.get(&id)?;
            Some(worker.segments.path_bytes(&conversation.path, conversation.placed, 0))
        };
        let bound = self.segments.bound;
        if needs(self).is_some_and(|needs| needs > bound) {
            // One segment takes the least, whatever others have.
            if let Some(conversation) = self.conversations.get_mut(&id) {
                conversation.pieces.clear();
            }
            self.fork(id, 0);
            self.place(id);
        }
        match needs(self).filter(|needs| *needs > bound) {
            Some(needs) => {
                self.refuse(id, needs);
                false
            }
            None => true,
        }
    }

    /// Tokens by which a turn's reservation is to be ahead of it.
    fn ahead(&self, id: u64, path: &[usize], end: usize) -> usize {
        let turn = self.conversations.get(&id).and_then(|conversation| conversation.turn.as_ref());
        let ahead = turn.map_or(0, |turn| turn.remaining().min(AHEAD));
        if self.segments.path_bytes(path, end, ahead) > self.segments.bound { 0 } else { ahead }
    }

    /// Enlarges the reservation of a running turn that outgrew it.
    fn grow(&mut self, id: u64) {
        let is_reserved =
            |conversation: &SequenceState| self.segments.is_reserved(&conversation.path, conversation.placed);
        if self.conversations.get(&id).is_none_or(is_reserved) || !self.fits(id) {
            return;
        }
        let Some(conversation) = self.conversations.get(&id) else { return };
        let (path, end) = (conversation.path.clone(), conversation.placed);
        let more = self.ahead(id, &path, end);
        while !self.make_room(self.segments.missing_bytes(&path, end, more), id, true) {
            let Some(youngest) = self.running.pop_last() else { return };
            self.preempt(youngest);
            if youngest == id {
                return;
            }
        }
        self.segments.reserve(&path, end, more);
    }

    /// Takes a running turn's reservation. The turn waits for another.
    fn preempt(&mut self, id: u64) {
        self.running.remove(&id);
        self.waiting.insert(id);
        let Some(conversation) = self.conversations.get(&id) else { return };
        let path = conversation.path.clone();
        self.segments.unpin(&path);
        let is_private = |number: &usize| self.segments.get(*number).is_some_and(Segment::is_private);
        let own: Vec<usize> = path.iter().rev().copied().take_while(is_private).collect();
        own.into_iter().for_each(|number| self.segments.evict(number));
    }

    fn refuse(&mut self, id: u64, needs: usize) {
        let tokens = self.conversations.get(&id).map_or(0, |conversation| conversation.tokens.len());
        let error = EngineError::Cache { tokens, needs, bound: self.segments.bound };
        if let Some(turn) = self.cancel(id) {
            // The receiver is gone if the episode was cancelled.
            _ = turn.reply.send(Err(error));
        }
    }
}
