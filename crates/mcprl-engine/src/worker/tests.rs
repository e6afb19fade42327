//! Random conversations against a worker that is stepped by the test.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::tests::sharing::MANY;

#[derive(Debug, Clone)]
struct Talk {
    cuts: Vec<usize>,
    length: usize,
    fork: Option<usize>,
    sampling: usize,
    seed: u64,
    start: usize,
    turns: Vec<(usize, usize, usize, usize, Option<usize>)>,
}

/// Allows tokens of one residue.
struct Mod(u32);

impl Guide for Mod {
    fn limit(&mut self, logits: &mut [f32]) -> Result<(), String> {
        (0..)
            .zip(logits)
            .filter(|(t, _)| t % 3 != self.0)
            .for_each(|(_, l): (u32, &mut f32)| *l = f32::NEG_INFINITY);
        Ok(())
    }
    fn advance(&mut self, token: u32) -> Result<(), String> {
        self.0 = token % 2;
        Ok(())
    }
}

fn sampling(index: usize) -> Sampling {
    let of = |temperature, top_p| Sampling { temperature, top_p, ..Sampling::GREEDY };
    [Sampling::GREEDY, of(0.12, 1.0), of(1.0, 1.0), of(0.3, 0.9), of(0.12, 1.0)][index]
}

fn talks() -> impl Strategy<Value = Vec<Talk>> {
    let turn = (0usize..40, 1usize..20, 0usize..4, 0usize..8, prop::option::weighted(0.3, 0usize..12));
    let talk = (
        prop::collection::vec(0usize..60, 0..4),
        1usize..60,
        prop::option::weighted(0.4, 0usize..60),
        0usize..5,
        0u64..3,
        0usize..12,
        prop::collection::vec(turn, 1..4),
    );
    let talk = talk.prop_map(|(mut cuts, length, fork, sampling, seed, start, turns)| {
        cuts.sort_unstable();
        Talk { cuts, length: if length > 40 { 50 } else { length }, fork, sampling, seed, start, turns }
    });
    prop::collection::vec(talk, 1..10)
}

fn prompt(talk: &Talk) -> Vec<Arc<[u32]>> {
    let all: Vec<u32> = (0..talk.length)
        .map(|i| ((i * i * 7 + i * 13 + usize::from(talk.fork.is_some_and(|f| i >= f))) % 89) as u32)
        .collect();
    let mut pieces = Vec::new();
    let mut start = 0;
    for cut in talk.cuts.iter().map(|c| (*c).min(talk.length)).chain([talk.length]) {
        pieces.push(all[start..cut].into());
        start = cut;
    }
    pieces
}

type Played = Vec<Result<Sampled, String>>;

fn check(worker: &DecodeWorker) {
    let paths =
        worker.conversations.iter().map(|(id, c)| (*id, (c.path.to_vec(), worker.running.contains(id))));
    worker.segments.check(&paths.collect());
    for (id, c) in &worker.conversations {
        let tokens: Vec<u32> =
            c.path.iter().flat_map(|n| worker.segments.get(*n).unwrap().tokens.clone()).collect();
        assert_eq!(tokens[..c.placed], c.tokens[..c.placed], "place of {id}");
    }
}

fn play(make: fn() -> Decoder, bound: usize, talks: &[Talk], cancels: bool) -> (Vec<Played>, usize) {
    let mut worker = DecodeWorker::new(Arc::new(make()), Arc::default(), bound);
    let mut played: Vec<Played> = vec![Vec::new(); talks.len()];
    let mut now: BTreeMap<usize, (oneshot::Receiver<Result<Sampled, EngineError>>, usize)> = BTreeMap::new();
    let mut undo = vec![false; talks.len()];
    let mut tried = vec![0usize; talks.len()];
    let mut most = 0;
    for round in 0..3000 {
        for (index, talk) in talks.iter().enumerate() {
            let id = index as u64;
            if round == talk.start {
                worker.handle(Command::Open {
                    id,
                    prompt: prompt(talk),
                    sampling: sampling(talk.sampling),
                    seed: talk.seed,
                });
            }
            if round < talk.start {
                continue;
            }
            let turn = played[index].len();
            if let Some((reply, since)) = now.get_mut(&index) {
                let cancel = talk.turns[turn].4.filter(|_| cancels && tried[index] == turn);
                if cancel.is_some_and(|after| round >= *since + after) {
                    now.remove(&index);
                    undo[index] = true;
                    tried[index] += 1;
                } else if let Ok(result) = reply.try_recv() {
                    now.remove(&index);
                    tried[index] = turn + 1;
                    played[index].push(
                        result.map_err(|e| e.to_string().split(':').next().unwrap_or_default().to_owned()),
                    );
                    if turn + 1 == talk.turns.len() {
                        worker.handle(Command::Close { id });
                    }
                }
            } else if let Some((append, new, kind, which, _)) = talk.turns.get(turn) {
                let (reply, result) = oneshot::channel();
                let guide = (*kind == 1).then(|| Box::new(Mod(1)) as Box<dyn Guide>);
                let append = (0..*append).map(|i| ((i * i + which % 2) % 89) as u32).collect();
                let turn = Turn {
                    stop: vec![5],
                    max_new: *new,
                    alternatives: if *kind == 2 { 2 } else { 0 },
                    guide,
                    sampled: Sampled::default(),
                    tokens: None,
                    reply,
                };
                let undo_previous = std::mem::take(&mut undo[index]);
                worker.handle(Command::Turn { id, append, undo_previous, turn });
                now.insert(index, (result, round));
            }
            check(&worker);
        }
        worker.schedule();
        check(&worker);
        worker.step().unwrap();
        most = most.max(worker.segments.reserved());
        check(&worker);
        if played.iter().zip(talks).all(|(p, t)| p.len() == t.turns.len()) {
            return (played, most);
        }
    }
    panic!("it does not end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stepped_conversations_draw_what_they_draw_alone(talks in talks(), which in 0usize..6, tenths in 2usize..14) {
        let make = MANY[which];
        let one = |bound| {
            let one = |talk| play(make, bound, std::slice::from_ref(talk), false).0.remove(0);
            talks.iter().map(one).collect::<Vec<Played>>()
        };
        let (together, most) = play(make, 1 << 30, &talks, true);
        prop_assert_eq!(&together, &one(1 << 30));
        let bound = most * tenths / 10;
        let (bounded, _) = play(make, bound, &talks, true);
        prop_assert_eq!(&bounded, &one(bound), "bounded");
    }
}
