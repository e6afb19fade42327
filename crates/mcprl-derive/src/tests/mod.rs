mod page;

use super::*;

fn refused(text: &str) -> String {
    expand(&syn::parse_str(text).unwrap()).unwrap_err().to_string()
}

#[test]
fn a_mistake_is_named() {
    for (attribute, variant, problem) in [
        (
            "area = \"a\", cod = \"x\"",
            "One",
            "no setting `cod`: area, code, class, transient, problems, transparent",
        ),
        ("class = usage", "One", "`One` has no code: set `area`, or a whole `code`"),
        ("area = \"a\"", "#[diagnostic(area = \"b\")] One", "`area` belongs to the type"),
        ("area = \"a\"", "#[diagnostic(transparent)] One", "`transparent` takes a variant with one field"),
        (
            "area = \"a\"",
            "#[hint = \"x\"] #[hint = \"y\"] One",
            "never used: the `hint` before it has no condition",
        ),
        ("area = \"a\"", "#[diagnostic(class)] One", "`class` takes a value"),
        (
            "area = \"a\"",
            "#[hint(if *x { \"y\" })] One",
            "a value is missing; one that begins with `if` stands in ( )",
        ),
    ] {
        let text = format!("#[diagnostic({attribute})] enum Error {{ {variant} }}");
        assert_eq!(refused(&text), problem, "{text}");
    }
    assert_eq!(refused("#[diagnostic(area = \"a\")] union Error { one: u8 }"), "a union is no error");
}

#[test]
fn a_method_that_nothing_is_said_about_is_that_of_the_trait() {
    let input = syn::parse_str("#[diagnostic(area = \"a\")] enum Error { One }").unwrap();
    let text = expand(&input).unwrap().to_string();
    assert!(text.contains("fn code") && !text.contains("fn hint") && !text.contains("fn class"), "{text}");
}
