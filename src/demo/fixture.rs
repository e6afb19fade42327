//! The tools that the server scenarios of the MCP conformance suite (`@modelcontextprotocol/conformance`) call, as far as
//! they concern what a demo server does: texts, errors, and schemas of any form.

use rmcp::model::Tool;
use serde_json::json;

use super::server::{Answer, Arguments, Demo, Effect::Reads, tool};

pub(super) struct Fixture;

impl Demo for Fixture {
    fn name(&self) -> &'static str {
        "mcprl-demo-conformance"
    }

    fn tools(&self) -> Vec<Tool> {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {"$anchor": "addressDef", "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        });
        let about = "Takes arguments of a schema with many keywords.";
        let schema = schema.as_object().cloned().unwrap_or_default();
        vec![
            tool("test_simple_text", "Gives a text.", &[], Reads),
            tool("test_error_handling", "Fails.", &[], Reads),
            Tool::new("json_schema_2020_12_tool", about, schema),
        ]
    }

    fn call(&self, tool: &str, _: Arguments<'_>) -> Option<Answer> {
        Some(match tool {
            "test_simple_text" => Ok("This is a simple text response for testing.".into()),
            "test_error_handling" => Err("This tool intentionally returns an error for testing".into()),
            "json_schema_2020_12_tool" => Ok("ok".into()),
            _ => return None,
        })
    }
}
