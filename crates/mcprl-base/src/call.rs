//! A call of a tool, as a model writes it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::VariantArray;

/// One parsed tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// The form in which a model wrote a call.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CallForm {
    /// As the chat template writes calls.
    #[default]
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
