//! Measures the error of a whole decoder with rounded weights, relative to the float64 reference.
//!
//! The error is the norm of the difference relative to the norm of the reference, over all compared values:
//! logits at every position of every sequence, and gradients of all adapters. The models are tiny, and their
//! signals differ much from those of trained models. `cargo test --release rounded -- --nocapture` prints the
//! error. `tests/reference/bf16_error.py` prints the error of Transformers on the same models.

use candle_core::Device;

use super::{Reference, gradients, logits};
use crate::model::{Adapter, Decoder, kernels::Format, ops};

/// Sums of squares of a difference and of its reference.
#[derive(Default)]
struct Error(f64, f64);

impl Error {
    fn add(&mut self, ours: &[f32], theirs: &[f32]) {
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            self.0 += f64::from(ours - theirs).powi(2);
            self.1 += f64::from(*theirs).powi(2);
        }
    }

    fn relative(&self) -> f64 {
        (self.0 / self.1).sqrt()
    }
}

/// Errors of the logits, and of the gradients if an adapter is trained.
struct Errors {
    logits: f64,
    gradients: Option<f64>,
}

/// The compared values: the logits of every sequence, and the gradients of an adapter's matrices.
type Found = (Vec<Vec<f32>>, Option<Vec<Vec<f32>>>);

fn found(reference: &Reference, decoder: Decoder) -> Found {
    let of_logits = reference.sequences().iter().map(|tokens| logits(&decoder, tokens)).collect();
    let of_gradients = (reference.of == "adapted").then(|| gradients(reference, decoder).0.slots);
    (of_logits, of_gradients.map(|slots| slots.iter().map(|slot| ops::read(slot).unwrap()).collect()))
}

/// In float64, with the weights as stored in the files.
fn exact(reference: &Reference) -> Found {
    let count = reference.sequences().len();
    let of_logits = (0..count).map(|index| reference.values(&format!("logits.{index}")).unwrap()).collect();
    let names = (reference.of == "adapted").then(|| reference.parameters());
    let of_gradient = |name: &String| reference.values(&format!("gradient.{name}")).unwrap();
    (of_logits, names.map(|names| names.iter().map(of_gradient).collect()))
}

/// In `f32`, with the weights as stored in this format.
fn stored(reference: &Reference, format: Format) -> Found {
    let folder = tempfile::tempdir().unwrap();
    let frozen = Decoder::load_on(&reference.case.model, Some(format), &Device::Cpu).unwrap();
    frozen.save(folder.path()).unwrap();
    let mut decoder = Decoder::load(folder.path()).unwrap();
    if reference.of == "adapted" {
        Adapter::load(&mut decoder, &reference.case.adapter).unwrap();
    }
    found(reference, decoder)
}

fn errors(ours: &Found, theirs: &Found) -> Errors {
    let of = |ours: &[Vec<f32>], theirs: &[Vec<f32>]| {
        let mut error = Error::default();
        ours.iter().zip(theirs).for_each(|(ours, theirs)| error.add(ours, theirs));
        error.relative()
    };
    let gradients = ours.1.as_ref().zip(theirs.1.as_ref()).map(|(ours, theirs)| of(ours, theirs));
    Errors { logits: of(&ours.0, &theirs.0), gradients }
}

/// Bounds of the error of the logits; of the logits in a mixture, where a token near a tie may choose another
/// expert; and of the gradients.
type Bounds = [f64; 3];

fn check(format: Format, what: &str, theirs: impl Fn(&Reference) -> Found, bounds: Bounds) {
    let [plain, mixture, gradients] = bounds;
    for reference in Reference::all() {
        let ours = found(&reference, reference.decoder_in(Some(format), &Device::Cpu));
        let Errors { logits, gradients: of_gradients } = errors(&ours, &theirs(&reference));
        let name = format!("{format:?} to {what}, {} {}", reference.case.name, reference.of);
        let of_gradients = of_gradients.unwrap_or(0.0);
        eprintln!("{name}: logits {logits:.4}, gradients {of_gradients:.4}");
        let (most, gradients) = match reference.case.name {
            "moe" => (mixture, gradients),
            // Its norms of short queries and keys enlarge an error, and gradients through them the more; the logits of
            // Transformers in bf16 differ by 0.04 to 0.05.
            "qwen3_5" => (4.0 * plain, f64::INFINITY),
            _ => (plain, gradients),
        };
        assert!(logits < most && of_gradients < gradients, "{name}: {logits} {of_gradients}");
    }
}

#[test]
fn bf16_is_near_the_reference() {
    check(Format::Bf16, "float64", exact, [0.025, 0.12, 0.45]);
}

/// With 4-bit weights, a model this small has entirely different gradients, so there is no bound for them.
#[test]
fn the_error_of_4_bit_weights_is_bounded() {
    check(Format::Nf4, "float64", exact, [0.55, 0.55, f64::INFINITY]);
}

#[test]
fn four_bit_products_are_near_those_of_the_same_weights_in_f32() {
    check(Format::Nf4, "the stored weights", |reference| stored(reference, Format::Nf4), [0.04, 0.2, 0.2]);
}
