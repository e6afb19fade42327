//! How strictly a sampled turn is read, and in which form its calls were written.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Which calls count when a sampled turn is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Calls as the chat template writes them.
    #[default]
    Strict,
    /// If the template's own form gives no readable call: calls to offered tools in any [form](CallForm).
    Lenient,
}

/// The form in which a model wrote a call.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CallForm {
    /// As the chat template writes calls.
    Template,
    /// JSON in the turn's text.
    BareJson,
    /// JSON between ``` fences.
    FencedJson,
    /// JSON, a Python call or a tool's name after an opening tag that the template does not write.
    Tags,
    /// A Python call.
    Python,
    /// Tags for the function and its arguments.
    Xml,
    /// As the template of another family writes calls.
    OtherTemplate,
}

impl CallForm {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The stable name, as serialized.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_serialized_under_its_name() {
        for form in CallForm::ALL {
            assert_eq!(serde_json::to_value(form).unwrap(), form.name());
        }
    }
}
