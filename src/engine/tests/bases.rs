//! Tests frozen weights that stay between stages: loaded once, never changed, and evicted for others.

use std::{path::Path, sync::Barrier};

use super::{super::memory::weights, *};
use crate::{error::Diagnostic, hash::Digest, model::ops::composed};

/// A model on disk, different for every name.
struct Stored {
    folder: tempfile::TempDir,
    digest: Digest,
}

fn stored(name: &str) -> Stored {
    let folder = tempfile::tempdir().unwrap();
    let seed = Digest::of(name.as_bytes()).seed();
    Decoder::random(config(), Init { seed, deviation: 0.15 }).unwrap().save(folder.path()).unwrap();
    Stored { folder, digest: Digest::of(name.as_bytes()) }
}

impl Stored {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn load(
        &self,
        bases: &Arc<ModelCache>,
        devices: usize,
        format: Format,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        self.load_with_workspace(bases, devices, format, 0)
    }

    fn load_with_workspace(
        &self,
        bases: &Arc<ModelCache>,
        devices: usize,
        format: Format,
        beside: usize,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        let devices = vec!["cpu".to_owned(); devices];
        let spec = EngineSpec { devices, threads: Some(3), dtype: Some(format), kv_cache_mib: None };
        bases.load(Checkpoint { digest: self.digest, folder: self.path() }, &spec, beside)
    }

    fn held(&self, bases: &ModelCache) -> bool {
        bases.holds(&self.digest, "cpu")
    }
}

fn bytes() -> usize {
    weights(&config(), Format::F32)
}

fn adapt(decoder: &mut Decoder) {
    Adapter::fresh(decoder, &AdapterConfig::new(4, 8.0), 5).unwrap();
}

/// The optimiser's state and the parameters after two steps on these devices.
fn trained(mut decoder: Decoder, places: &DeviceSet) -> Vec<u8> {
    adapt(&mut decoder);
    let rule = Rule::AdamW { rate: 1e-2, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };
    let mut trainer = Trainer::across(decoder, |all| vec![rule; all.len()], places).unwrap();
    let batches: Vec<_> = branching().chunks(2).map(|pair| Microbatch::new(pair).0).collect();
    for _ in 0..2 {
        trainer.step(&batches, &|_, _, p| 0.01 * p, 1.0, 1.0).unwrap();
    }
    safetensors::serialize(trainer.state().unwrap(), None).unwrap()
}

#[test]
fn a_model_is_read_once_for_all_that_work_with_it() {
    let (bases, model) = (Arc::<ModelCache>::default(), stored("a"));
    let (first, _) = model.load(&bases, 1, Format::F32).unwrap();
    for devices in [1, 3] {
        let (decoder, places) = model.load(&bases, devices, Format::F32).unwrap();
        assert!(decoder.embedding.is_one_with(&first.embedding));
        for place in &places.others {
            let replica = place.base.as_ref().unwrap().decoder().unwrap();
            assert!(replica.layers[1].linears[2].weight.is_one_with(&first.layers[1].linears[2].weight));
        }
    }
    assert_eq!(bases.loads(), 1);
}

#[tokio::test]
async fn a_policy_that_was_closed_has_let_go_what_it_worked_with() {
    let (bases, model) = (Arc::<ModelCache>::default(), stored("a"));
    for _ in 0..20 {
        let (decoder, places) = model.load(&bases, 2, Format::F32).unwrap();
        let sampler = Sampler::across(decoder, &places, None).unwrap();
        play(&sampler, 6).await;
        let bases = || std::iter::once(&places.first).chain(&places.others).map(|place| place.base.as_ref());
        assert!(bases().all(|base| base.unwrap().is_in_use()));
        sampler.close().await;
        assert!(!bases().any(|base| base.unwrap().is_in_use()));
    }
}

#[test]
fn another_format_or_another_model_is_read_anew() {
    let (bases, a, b) = (Arc::<ModelCache>::default(), stored("a"), stored("b"));
    for (model, format, loads) in
        [(&a, Format::F32, 1), (&a, Format::Bf16, 2), (&b, Format::Bf16, 3), (&a, Format::F32, 3)]
    {
        let (decoder, _) = model.load(&bases, 1, format).unwrap();
        assert_eq!((decoder.layers[0].linears[0].weight.format(), bases.loads()), (format, loads));
    }
}

#[tokio::test]
async fn what_is_sampled_and_trained_is_what_a_model_of_its_own_gives() {
    let (bases, model) = (Arc::<ModelCache>::default(), stored("a"));
    for (devices, format) in [(1, Format::F32), (2, Format::F32), (2, Format::Bf16)] {
        let places = DeviceSet::cpu(devices, 3);
        let own = || load_frozen(model.path(), Some(format), &candle_core::Device::Cpu).unwrap();
        let expected = trained(own(), &places);
        let mut alone = own();
        adapt(&mut alone);
        let heard = play(&Sampler::across(alone, &places, None).unwrap(), 6).await;
        for _ in 0..2 {
            let (decoder, places) = model.load(&bases, devices, format).unwrap();
            assert!(trained(decoder, &places) == expected);
            let (mut decoder, places) = model.load(&bases, devices, format).unwrap();
            adapt(&mut decoder);
            assert_eq!(play(&Sampler::across(decoder, &places, None).unwrap(), 6).await, heard);
        }
    }
    assert_eq!(bases.loads(), 2);
}

#[test]
fn a_decoder_that_is_trained_whole_leaves_what_is_held_as_it_was() {
    for by_kernels in [true, false] {
        let _forced = (!by_kernels).then(composed::force);
        let (bases, model) = (Arc::<ModelCache>::default(), stored("a"));
        let values = |decoder: &Decoder| -> Vec<Vec<f32>> {
            decoder.tensors().unwrap().iter().map(|(_, tensor)| ops::read(tensor).unwrap()).collect()
        };
        let (mut whole, _) = model.load(&bases, 1, Format::F32).unwrap();
        let before = values(&whole);
        for parameter in whole.trained() {
            let zeros = parameter.tensor().zeros_like().unwrap();
            composed::assign(parameter.tensor(), &zeros).unwrap();
        }
        assert!(values(&whole).iter().flatten().all(|value| *value == 0.0));
        assert_eq!(values(&model.load(&bases, 1, Format::F32).unwrap().0), before);
    }
}

#[test]
fn the_one_asked_for_longest_ago_is_let_go_where_both_do_not_fit() {
    let [a, b, c] = ["a", "b", "c"].map(stored);
    let roomy = ModelCache::with_left(bytes());
    for model in [&a, &b, &a] {
        model.load(&roomy, 1, Format::F32).unwrap();
    }
    assert!(a.held(&roomy) && b.held(&roomy));
    // There is room for one of the two.
    c.load_with_workspace(&roomy, 1, Format::F32, bytes() / 2).unwrap();
    assert_eq!([&a, &b, &c].map(|model| model.held(&roomy)), [true, false, true]);
}

#[test]
fn what_work_takes_beside_its_weights_makes_room_too() {
    let (bases, a, b) = (ModelCache::with_left(2 * bytes()), stored("a"), stored("b"));
    b.load(&bases, 1, Format::F32).unwrap();
    a.load(&bases, 1, Format::F32).unwrap();
    a.load_with_workspace(&bases, 1, Format::F32, 2 * bytes()).unwrap();
    assert!(b.held(&bases));
    a.load_with_workspace(&bases, 1, Format::F32, 2 * bytes() + 1).unwrap();
    assert!(a.held(&bases) && !b.held(&bases));
    bases.clear(&DeviceSet::cpu(2, 2), usize::MAX);
    assert!(!a.held(&bases));
}

#[test]
fn a_step_that_needs_the_memory_of_a_model_gets_it() {
    let (bases, a, b) = (ModelCache::with_left(bytes()), stored("a"), stored("b"));
    b.load(&bases, 1, Format::F32).unwrap();
    let (decoder, places) = a.load(&bases, 1, Format::F32).unwrap();
    let spec = EngineSpec { devices: vec!["cpu".into()], threads: None, dtype: None, kv_cache_mib: None };
    assert!(b.held(&bases));
    // Still refused: almost no memory is available on this machine.
    assert!(Sampler::attached(decoder, &places, &spec).is_err_and(|error| error.code() == "engine::memory"));
    assert!(!b.held(&bases));
}

#[test]
fn what_a_stage_works_with_goes_after_what_nobody_does() {
    let [a, b, c] = ["a", "b", "c"].map(stored);
    let bases = ModelCache::with_left(bytes());
    let at_work = a.load(&bases, 1, Format::F32).unwrap();
    b.load(&bases, 1, Format::F32).unwrap();
    c.load_with_workspace(&bases, 1, Format::F32, bytes() / 2).unwrap();
    assert_eq!([&a, &b, &c].map(|model| model.held(&bases)), [true, false, true]);
    c.load_with_workspace(&bases, 1, Format::F32, usize::MAX).unwrap();
    assert_eq!([&a, &c].map(|model| model.held(&bases)), [false, true]);
    drop(at_work);
}

#[test]
fn what_no_stage_will_read_is_let_go() {
    let (bases, a, b) = (Arc::<ModelCache>::default(), stored("a"), stored("b"));
    a.load(&bases, 1, Format::F32).unwrap();
    b.load(&bases, 1, Format::F32).unwrap();
    bases.retain(|digest| *digest == b.digest);
    assert_eq!([&a, &b].map(|model| model.held(&bases)), [false, true]);
    bases.leave(&["cuda:0".to_owned()]);
    assert!(b.held(&bases));
    bases.leave(&["cpu".to_owned()]);
    assert!(bases.is_empty());
}

#[test]
fn those_who_ask_at_once_wait_for_one_load() {
    let (bases, model, barrier) = (Arc::<ModelCache>::default(), stored("a"), Barrier::new(6));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                barrier.wait();
                model.load(&bases, 1, Format::F32).unwrap();
            });
        }
    });
    assert_eq!(bases.loads(), 1);
}

#[test]
fn of_a_load_that_failed_nothing_is_left() {
    let (bases, model) = (Arc::<ModelCache>::default(), stored("a"));
    let weights = model.path().join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    assert!(model.load(&bases, 1, Format::F32).is_err());
    assert!(!model.held(&bases));
    std::fs::write(&weights, &whole).unwrap();
    model.load(&bases, 1, Format::F32).unwrap();
    assert!(model.held(&bases));
}

#[test]
fn weights_beyond_the_memory_are_refused_though_others_were_let_go() {
    let (bases, a, b) = (ModelCache::with_left(bytes() / 3), stored("a"), stored("b"));
    let refused = a.load(&bases, 1, Format::F32).unwrap_err();
    assert_eq!((refused.code(), a.held(&bases)), ("engine::memory", false));
    a.load(&bases, 1, Format::Nf4).unwrap();
    assert_eq!(b.load(&bases, 1, Format::F32).unwrap_err().code(), "engine::memory");
    assert!(!a.held(&bases) && !b.held(&bases));
}
