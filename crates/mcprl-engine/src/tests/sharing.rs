//! Tests that conversations share what is the same: each distinct token is computed once, and nothing else changes.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use super::*;

/// Draws the same token mostly.
const COOL: Sampling = Sampling { temperature: 0.12, ..Sampling::GREEDY };

struct Talk {
    prompt: Vec<Arc<[u32]>>,
    sampling: Sampling,
    seed: u64,
    /// What others say before each turn.
    results: Vec<Vec<u32>>,
    /// Milliseconds before it starts, and before each result.
    pause: u64,
}

/// Groups of six conversations: two have the same seed, some hear the same, some come later.
fn talks() -> Vec<Talk> {
    let talk = |index: usize| Talk {
        prompt: vec![tokens(30, 1).into(), tokens(9, index / 6).into()],
        sampling: [COOL, COOL, COOL, COOL, Sampling::GREEDY, Sampling { top_p: 0.9, ..WARM }][index % 6],
        seed: (index % 6).max(1) as u64,
        results: [vec![], tokens(12, index % 2), tokens(5, 3)].into(),
        pause: if index % 6 == 3 { 30 } else { 0 },
    };
    (0..12).map(talk).collect()
}

/// Of each conversation: its tokens, and the bits of the log-probabilities of those that were sampled.
type Played = (Vec<u32>, Vec<u32>);

async fn play_one(sampler: &Sampler, talk: &Talk) -> Played {
    let pause = async || {
        if talk.pause > 0 {
            tokio::time::sleep(Duration::from_millis(talk.pause)).await;
        }
    };
    pause().await;
    let mut sequence = sampler.open(talk.prompt.clone(), talk.sampling, talk.seed);
    let (mut all, mut logprobs) = (talk.prompt.concat(), Vec::new());
    for result in &talk.results {
        pause().await;
        let turn = sequence.turn(result, &[5], 18).await.unwrap();
        all.extend(result.iter().chain(&turn.tokens));
        logprobs.extend(turn.logprobs.iter().map(|logprob| logprob.to_bits()));
    }
    (all, logprobs)
}

async fn play_together(sampler: &Sampler, talks: &[Talk]) -> Vec<Played> {
    join_all(talks.iter().map(|talk| play_one(sampler, talk))).await
}

async fn play_alone(make: fn() -> Decoder, talks: &[Talk]) -> Vec<Played> {
    let mut played = Vec::new();
    for talk in talks {
        played.push(play_one(&Sampler::on_threads(make(), 1), talk).await);
    }
    played
}

/// The number of different beginnings of these conversations.
fn distinct(played: &[Played]) -> u64 {
    let beginnings =
        |(tokens, _): &Played| (1..=tokens.len()).map(|end| tokens[..end].to_vec()).collect::<Vec<_>>();
    played.iter().flat_map(beginnings).collect::<BTreeSet<_>>().len() as u64
}

fn computed(sampler: &Sampler) -> u64 {
    sampler.usage().computed.load(Ordering::Relaxed)
}

pub const MANY: [fn() -> Decoder; 6] = [
    adapted,
    || frozen(Format::Bf16),
    || frozen(Format::Nf4),
    windowed,
    recurrence::adapted,
    recurrence::convolution,
];

/// A decoder one of whose layers has a window.
fn windowed() -> Decoder {
    let mut config = config();
    config.design = crate::model::Design {
        layers: vec![crate::model::LayerKind::FullAttention, crate::model::LayerKind::SlidingAttention],
        sliding: Some(crate::model::Sliding { window: 20, rope_theta: None }),
        ..config.design
    };
    Decoder::random(config, Init { seed: 3, deviation: 0.15 }).unwrap()
}

#[tokio::test]
async fn conversations_that_share_draw_what_they_draw_alone() {
    for make in MANY {
        let expected = play_alone(make, &talks()).await;
        for threads in [1, 2] {
            let found = play_together(&Sampler::on_threads(make(), threads), &talks()).await;
            assert_eq!(found, expected);
        }
        let free = Sampler::on_threads(make(), 1);
        play_together(&free, &talks()).await;
        let most = free.usage().max_cached.load(Ordering::Relaxed) as usize;
        for tenths in [4, 6, 8] {
            let bounded = Sampler::bounded(make(), 1, most * tenths / 10);
            assert_eq!(play_together(&bounded, &talks()).await, expected, "{tenths} tenths");
        }
    }
}

#[tokio::test]
async fn each_distinct_token_is_computed_once() {
    let sampler = Sampler::on_threads(adapted(), 1);
    let played = play_together(&sampler, &talks()).await;
    let (all, distinct) =
        (played.iter().map(|(tokens, _)| tokens.len() as u64).sum::<u64>(), distinct(&played));
    // One row more where somebody came later and drew an unlikely token.
    assert!(computed(&sampler) <= distinct + distinct / 20, "{} of {distinct}", computed(&sampler));
    assert!(3 * distinct < 2 * all, "{distinct} of {all} tokens are distinct");
}

#[tokio::test]
async fn who_comes_later_draws_from_what_is_there() {
    let sampler = Sampler::on_threads(adapted(), 1);
    let talk = || Talk { pause: 0, ..talks().swap_remove(1) };
    let first = play_one(&sampler, &talk()).await;
    let before = computed(&sampler);
    // The first one is closed.
    assert_eq!(play_one(&sampler, &talk()).await, first);
    assert!(computed(&sampler) <= before + 4, "{} after {before}", computed(&sampler));
}

#[tokio::test]
async fn alternatives_and_guides_get_their_rows() {
    let sampler = Sampler::on_threads(adapted(), 1);
    let open = || sampler.open(vec![tokens(40, 2).into()], COOL, 3);
    let plain = open().turn(&[], &[], 12).await.unwrap();
    let found = open().with_alternatives(3).turn(&[], &[], 12).await.unwrap();
    assert_eq!((found.tokens, found.logprobs), (plain.tokens, plain.logprobs));
    assert!(found.alternatives.iter().all(|alternatives| alternatives.len() == 3));
}

#[tokio::test]
async fn idle_segments_stay_within_the_memory_that_open_conversations_needed() {
    let most = async |talks: &[Talk]| {
        let sampler = Sampler::on_threads(adapted(), 1);
        for talk in talks {
            play_one(&sampler, talk).await;
        }
        sampler.usage().max_cached.load(Ordering::Relaxed)
    };
    let of = |seed: usize| Talk { prompt: vec![tokens(60, seed).into()], pause: 0, ..talks().swap_remove(0) };
    let alone = most(&[of(1)]).await;
    assert!(most(&(1..8).map(of).collect::<Vec<_>>()).await <= alone + alone / 3);
}

#[tokio::test]
async fn turns_that_are_dropped_leave_others_as_they_are() {
    let expected = play_alone(adapted, &talks()).await;
    let sampler = Sampler::on_threads(adapted(), 1);
    let rounds = AtomicUsize::new(0);
    let disturb = async {
        while rounds.load(Ordering::Relaxed) < 12 {
            for talk in talks() {
                let mut sequence = sampler.open(talk.prompt.clone(), talk.sampling, talk.seed);
                let turn = tokio::time::timeout(Duration::from_micros(300), sequence.turn(&[], &[5], 25));
                if turn.await.is_err() {
                    // The same again, undone.
                    _ = tokio::time::timeout(Duration::from_micros(300), sequence.turn(&[], &[5], 25)).await;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    let play = async {
        let mut found = Vec::new();
        for talk in talks() {
            found.push(play_one(&sampler, &talk).await);
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        found
    };
    let ((), found) = futures::join!(disturb, play);
    assert_eq!(found, expected);
}
