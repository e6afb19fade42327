//! The JSON Schema of a table of the run file that is a struct. `plan` checks the table against it, and
//! `mcprl schema` prints it.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    optional_means_absent(&mut schema);
    schema.as_object_mut().and_then(|fields| fields.remove("title"));
    schema
}

/// TOML has no null, so optional keys are absent.
fn optional_means_absent(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            let choice = fields.get_mut("anyOf").and_then(Value::as_array_mut);
            if let Some(choice) = choice {
                choice.retain(|one| one.get("type") != Some(&json!("null")));
                if let [Value::Object(only)] = choice.as_mut_slice() {
                    let only = std::mem::take(only);
                    fields.remove("anyOf");
                    for (name, value) in only {
                        fields.entry(name).or_insert(value);
                    }
                }
            }
            fields.remove("format");
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            fields.values_mut().for_each(optional_means_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(optional_means_absent),
        _ => {}
    }
}
