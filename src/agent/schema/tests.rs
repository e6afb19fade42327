use serde_json::json;

use super::*;

fn violations(schema: Value, arguments: Value) -> Option<String> {
    let arguments = arguments.as_object().unwrap();
    Schema::compile(schema).unwrap().violations(arguments).map(|texts| texts.join("; "))
}

fn refused(schema: Value) -> String {
    Schema::compile(schema).unwrap_err()
}

#[test]
fn a_violation_names_the_argument_and_what_is_expected() {
    let schema = json!({
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "pattern": "^[a-z ]*$"},
            "limit": {"type": ["integer", "null"], "minimum": 1},
            "order": {"enum": ["up", "down"]},
            "filter": {"$ref": "#/$defs/filter"},
            "sizes": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "shape": {"oneOf": [
                {"type": "object", "properties": {"kind": {"const": "box"}, "side": {"type": "number"}}, "required": ["kind", "side"]},
                {"type": "string"},
            ]},
        },
        "required": ["query"],
        "additionalProperties": false,
        "$defs": {"filter": {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}},
    });
    for (arguments, expected) in [
        (json!({"query": "a", "limit": null, "order": "up", "filter": {"names": ["x"], "more": 1}}), ""),
        (json!({"query": "a", "limit": 7.0, "sizes": [1, 2.5], "either": null, "shape": "x"}), ""),
        (json!({}), "`query` is missing; it should be a string"),
        (json!({"query": 7}), "`query` should be a string, found the number 7"),
        (json!({"query": "A"}), "`query` should match ^[a-z ]*$"),
        (json!({"query": ""}), "`query` should have at least 1 characters, found 0"),
        (json!({"query": "a", "limit": "7"}), "`limit` should be an integer or null, found the string \"7\""),
        (json!({"query": "a", "limit": 0}), "`limit` should be at least 1, found 0"),
        (json!({"query": "a", "order": "left"}), "`order` should be one of \"up\", \"down\", found \"left\""),
        (
            json!({"query": "a", "sql": "b"}),
            "`sql` is unknown; there is `query`, `limit`, `order`, `filter`, `sizes`, `either`, `shape`",
        ),
        (
            json!({"query": "a", "filter": {"names": ["x", 1]}}),
            "`filter.names[1]` should be a string, found the number 1",
        ),
        (json!({"query": "a", "sizes": [1, 2, 3]}), "`sizes` should have at most 2 items, found 3"),
        (
            json!({"query": "a", "either": "x"}),
            "`either` should be an integer or null, found the string \"x\"",
        ),
        (json!({"query": "a", "shape": {"kind": "box"}}), "`shape.side` is missing; it should be a number"),
        (
            json!({"limit": "a", "order": 1, "filter": [], "sizes": 1}),
            "`query` is missing; it should be a string; `limit` should be an integer or null, found the string \"a\"; \
             `order` should be one of \"up\", \"down\", found 1",
        ),
    ] {
        assert_eq!(violations(schema.clone(), arguments.clone()).as_deref(), Some(expected), "{arguments}");
    }
}

#[test]
fn a_violation_is_short() {
    let schema = json!({"properties": {"x": {"enum": (0..500).map(|n| n.to_string()).collect::<Vec<_>>()}}});
    let text = violations(schema, json!({"x": "y".repeat(10_000)})).unwrap();
    assert!(text.len() < 300, "{text}");
}

#[test]
fn both_dialects_are_checked() {
    let old = "http://json-schema.org/draft-07/schema#";
    for (schema, arguments, is_right) in [
        (
            json!({"properties": {"a": {"prefixItems": [{"type": "string"}], "items": false}}}),
            json!({"a": ["x", 1]}),
            false,
        ),
        (
            json!({"properties": {"a": {"items": [{"type": "string"}], "additionalItems": false}}}),
            json!({"a": ["x", 1]}),
            false,
        ),
        (json!({"dependentRequired": {"a": ["b"]}}), json!({"a": 1}), false),
        (json!({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}), json!({"c": 1}), false),
        (
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
            json!({"a": 1}),
            false,
        ),
        (json!({"not": {"required": ["a"]}}), json!({"a": 1}), false),
        // Beside a `$ref`, keywords count since 2019-09.
        (
            json!({"properties": {"a": {"$ref": "#/$defs/t", "minLength": 3}}, "$defs": {"t": {"type": "string"}}}),
            json!({"a": "x"}),
            false,
        ),
        (
            json!({"$schema": old, "properties": {"a": {"$ref": "#/definitions/t", "minLength": 3}}, "definitions": {"t": {"type": "string"}}}),
            json!({"a": "x"}),
            true,
        ),
        (
            json!({"$id": "https://a.b/c", "properties": {"a": {"$ref": "https://a.b/c#x"}}, "$defs": {"t": {"$anchor": "x", "type": "string"}}}),
            json!({"a": 1}),
            false,
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/a%20b~1c"}}, "$defs": {"a b/c": {"type": "string"}}}),
            json!({"a": 1}),
            false,
        ),
        (
            json!({"allOf": [{"properties": {"a": true}}], "unevaluatedProperties": false}),
            json!({"a": 1}),
            true,
        ),
        (
            json!({"allOf": [{"properties": {"a": true}}], "unevaluatedProperties": false}),
            json!({"b": 1}),
            false,
        ),
        (json!({"properties": {"a": {"format": "date"}}}), json!({"a": "no date"}), true),
        (json!({"properties": {"a": {"multipleOf": 0.1}}}), json!({"a": 0.3}), true),
        (json!({"properties": {"a": {"uniqueItems": true}}}), json!({"a": [1, 1.0]}), false),
    ] {
        let found = violations(schema.clone(), arguments.clone()).unwrap();
        assert_eq!(found.is_empty(), is_right, "{schema} {arguments}: {found}");
    }
}

#[test]
fn a_schema_that_cannot_be_used_has_a_reason() {
    for (schema, reason) in [
        (json!({"$ref": "http://127.0.0.1:1/x"}), "`$ref` \"http://127.0.0.1:1/x\" is not in the schema"),
        (json!({"$ref": "other.json#/a"}), "`$ref` \"other.json#/a\" is not in the schema"),
        (json!({"$ref": "#/$defs/a"}), "`$ref` \"#/$defs/a\" has no target"),
        (json!({"$ref": 1}), "`$ref` in the schema is no text"),
        (json!({"properties": {"a": {"type": "strng"}}}), "the value of `/properties/a/type` is invalid"),
        (
            json!({"properties": {"a": {"required": true}}}),
            "the value of `/properties/a/required` is invalid",
        ),
        (json!({"properties": {"a": "string"}}), "`/properties/a` is no schema"),
        (json!({"properties": {"a": {"pattern": "(?=a)b"}}}), "the pattern \"(?=a)b\" is not supported"),
        (
            json!({"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}}),
            "the pattern \"((a{1000}){1000}){1000}\" is not supported",
        ),
        (
            json!({"properties": {"a": {"$id": "b", "type": "string"}}}),
            "`/properties/a` has an `$id` of its own",
        ),
        (json!({"properties": {"a": {"$dynamicRef": "#a"}}}), "it uses `$dynamicRef`"),
        (json!({"$ref": "#"}), "checking against it takes too long"),
        (json!({"anyOf": [{"not": {"$ref": "#"}}]}), "checking against it takes too long"),
    ] {
        assert_eq!(refused(schema.clone()), reason, "{schema}");
    }
}

#[test]
fn a_hostile_schema_takes_bounded_time_and_refuses_nothing() {
    let twice = |target: &str| json!({"allOf": [{"$ref": target}, {"$ref": target}]});
    let definitions: Map<String, Value> =
        (0..60).map(|n| (format!("d{n}"), twice(&format!("#/$defs/d{}", n + 1)))).collect();
    let mut schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    schema["$defs"]["d60"] = json!({"type": "object"});
    assert_eq!(refused(schema), "checking against it takes too long");

    let child = json!({"properties": {"c": {"$ref": "#"}}});
    let nested = (0..60).fold(json!({}), |inner, _| json!({"c": inner}));
    assert_eq!(violations(json!({"allOf": [child, child]}), nested), None);

    let items: Vec<u32> = (0..10_000).collect();
    assert_eq!(violations(json!({"properties": {"a": {"uniqueItems": true}}}), json!({"a": items})), None);

    let names: Vec<String> = (0..5_000).map(|number| format!("n{number}")).collect();
    let all = vec![json!({"$ref": "#/$defs/r"}); 5_000];
    let schema = json!({"allOf": all, "$defs": {"r": {"required": names}}});
    assert_eq!(refused(schema), "checking against it takes too long");

    let all = vec![json!({"$ref": "#/$defs/p"}); 5_000];
    let schema = json!({"properties": {"a": {"allOf": all}}, "$defs": {"p": {"type": "string", "pattern": "(x|y)*z"}}});
    assert_eq!(violations(schema, json!({"a": "x".repeat(4_000)})), None);

    // A pattern on which backtracking would never end.
    let text = format!("{}b", "a".repeat(10_000));
    let schema = json!({"properties": {"a": {"pattern": "^(a+)+$"}}});
    assert_eq!(violations(schema, json!({"a": text})).as_deref(), Some("`a` should match ^(a+)+$"));
}

#[test]
fn arguments_are_converted_where_nothing_is_lost() {
    let schema = json!({
        "properties": {
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "s": {"type": "string"},
            "o": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "u": {"type": ["string", "integer"]},
            "r": {"$ref": "#/$defs/r"},
            "l": {"type": "array", "items": {"type": "integer"}},
            "x": {},
        },
        "$defs": {"r": {"type": "object", "properties": {"i": {"type": "integer"}}}},
    });
    let schema = Schema::compile(schema).unwrap();
    for (given, sent) in [
        (json!({"i": "7", "n": "1.5", "b": "true", "s": 7}), json!({"i": 7, "n": 1.5, "b": true, "s": "7"})),
        (
            json!({"i": " -7 ", "b": "False", "s": 1.5, "o": "3"}),
            json!({"i": -7, "b": false, "s": "1.5", "o": 3}),
        ),
        (
            json!({"i": "7.5", "n": "x", "b": "1", "s": true}),
            json!({"i": "7.5", "n": "x", "b": "1", "s": true}),
        ),
        (json!({"u": "7", "x": "7", "i": null, "n": ""}), json!({"u": "7", "x": "7", "i": null, "n": ""})),
        (json!({"r": {"i": "7"}, "l": ["1", 2]}), json!({"r": {"i": 7}, "l": [1, 2]})),
    ] {
        let mut arguments = given.as_object().unwrap().clone();
        schema.coerce(&mut arguments);
        assert_eq!(Value::from(arguments), sent, "{given}");
    }
}

#[test]
fn null_fits_where_servers_mean_it_whatever_the_dialect() {
    let of = |schema: Value, value: Value| {
        violations(json!({"type": "object", "properties": {"x": schema}}), json!({ "x": value })).unwrap()
    };
    for schema in [
        json!({"type": "string", "nullable": true}),
        json!({"type": "string", "enum": ["a"], "nullable": true}),
        json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "type": "null"}),
        json!({"oneOf": [{"type": "string"}], "type": "null"}),
    ] {
        assert_eq!(of(schema.clone(), Value::Null), "", "{schema}");
        assert_eq!(of(schema.clone(), json!("a")), "", "{schema}");
        assert_ne!(of(schema.clone(), json!([1])), "", "{schema}");
    }
    assert_ne!(of(json!({"type": "string", "nullable": false}), Value::Null), "");
    assert_eq!(of(json!({"type": "null"}), Value::Null), "");
    let php = json!({"type": "object", "properties": [], "required": null, "$defs": []});
    assert_eq!(violations(php, json!({"a": 1})).unwrap(), "");
}
