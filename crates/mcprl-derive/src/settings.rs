//! What `#[diagnostic(…)]` and `#[hint(…)]` say, and the body of each method for a variant or a struct.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Ident, Index, LitStr, Meta, Result, Token,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

const NAMES: [&str; 6] = ["area", "code", "class", "transient", "problems", "transparent"];

/// `name` or `name = value`, and perhaps `if condition`.
#[derive(Clone)]
pub struct Setting {
    pub name: Ident,
    pub value: TokenStream,
    condition: Option<TokenStream>,
}

/// A variant of an enum, or a struct.
pub struct Case {
    /// Of the variant or the struct.
    name: Ident,
    /// Binds each field by its name, or as `_0`.
    pub pattern: TokenStream,
    bindings: Vec<Ident>,
    area: Option<String>,
    own: Vec<Setting>,
    /// Of its type.
    common: Vec<Setting>,
}

impl Parse for Setting {
    fn parse(input: ParseStream) -> Result<Self> {
        let name: Ident = input.parse()?;
        if !NAMES.iter().any(|known| name == known) {
            return Err(Error::new(name.span(), format!("no setting `{name}`: {}", NAMES.join(", "))));
        }
        if input.parse::<Option<Token![=]>>()?.is_some() {
            return Self::of(name, input);
        }
        if ["transient", "transparent"].iter().all(|flag| name != flag) {
            return Err(Error::new(name.span(), format!("`{name}` takes a value")));
        }
        Ok(Self { name, value: TokenStream::new(), condition: condition(input)? })
    }
}

impl Setting {
    /// With the value and the condition that follow.
    fn of(name: Ident, input: ParseStream) -> Result<Self> {
        let mut value = TokenStream::new();
        while !input.is_empty() && !input.peek(Token![,]) && !input.peek(Token![if]) {
            value.extend([input.parse::<TokenTree>()?]);
        }
        if value.is_empty() {
            return Err(input.error("a value is missing; one that begins with `if` stands in ( )"));
        }
        Ok(Self { name, value, condition: condition(input)? })
    }
}

fn condition(input: ParseStream) -> Result<Option<TokenStream>> {
    if input.parse::<Option<Token![if]>>()?.is_none() {
        return Ok(None);
    }
    let mut condition = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        condition.extend([input.parse::<TokenTree>()?]);
    }
    Ok(Some(condition))
}

fn settings(attributes: &[Attribute]) -> Result<Vec<Setting>> {
    let mut all: Vec<Setting> = Vec::new();
    for attribute in attributes {
        let Some(name) = attribute.path().get_ident() else { continue };
        match &attribute.meta {
            _ if name == "diagnostic" => {
                all.extend(attribute.parse_args_with(Punctuated::<Setting, Token![,]>::parse_terminated)?);
            }
            Meta::NameValue(meta) if name == "hint" => {
                all.push(Setting {
                    name: name.clone(),
                    value: meta.value.to_token_stream(),
                    condition: None,
                });
            }
            _ if name == "hint" => {
                all.push(attribute.parse_args_with(|input: ParseStream| Setting::of(name.clone(), input))?);
            }
            _ => {}
        }
    }
    for (at, setting) in all.iter().enumerate() {
        if all[..at].iter().any(|earlier| earlier.name == setting.name && earlier.condition.is_none()) {
            let problem = format!("never used: the `{}` before it has no condition", setting.name);
            return Err(Error::new(setting.name.span(), problem));
        }
    }
    Ok(all)
}

/// The cases of a type that derives the trait.
pub fn cases(input: &DeriveInput) -> Result<Vec<Case>> {
    let mut common = settings(&input.attrs)?;
    let area = common.iter().position(|setting| setting.name == "area").map(|at| common.remove(at).value);
    let area = area.map(syn::parse2::<LitStr>).transpose()?.map(|text| text.value());
    let case = |name: &Ident, path, fields: &Fields, own| {
        Case::new(name, path, fields, own, common.clone(), area.clone())
    };
    match &input.data {
        Data::Struct(data) => Ok(vec![case(&input.ident, quote!(Self), &data.fields, Vec::new())?]),
        Data::Enum(data) => {
            let cases = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                case(name, quote!(Self::#name), &variant.fields, settings(&variant.attrs)?)
            });
            cases.collect()
        }
        Data::Union(_) => Err(Error::new(input.ident.span(), "a union is no error")),
    }
}

impl Case {
    fn new(
        name: &Ident,
        path: TokenStream,
        fields: &Fields,
        own: Vec<Setting>,
        common: Vec<Setting>,
        area: Option<String>,
    ) -> Result<Self> {
        let binding = |(at, field): (usize, &Field)| field.ident.clone().unwrap_or(format_ident!("_{at}"));
        let bindings: Vec<Ident> = fields.iter().enumerate().map(binding).collect();
        let positions = (0..bindings.len()).map(Index::from);
        let pattern = match fields {
            Fields::Unnamed(_) => quote!(#path { #(#positions: #bindings),* }),
            _ => quote!(#path { #(#bindings),* }),
        };
        let case = Self { name: name.clone(), pattern, bindings, area, own, common };
        if let Some(setting) = case.own.iter().find(|setting| setting.name == "area") {
            return Err(Error::new(setting.name.span(), "`area` belongs to the type"));
        }
        match case.transparent() {
            Some(setting) if case.bindings.len() != 1 => {
                Err(Error::new(setting.name.span(), "`transparent` takes a variant with one field"))
            }
            _ => Ok(case),
        }
    }

    fn transparent(&self) -> Option<&Setting> {
        self.own.iter().chain(&self.common).find(|setting| setting.name == "transparent")
    }

    /// The settings that decide, the first before the others, up to one without a condition.
    pub fn chain(&self, name: &str) -> Vec<&Setting> {
        let common = self.common.iter().filter(|_| self.transparent().is_none());
        let mut chain = Vec::new();
        for setting in self.own.iter().chain(common).filter(|setting| setting.name == name) {
            chain.push(setting);
            if setting.condition.is_none() {
                break;
            }
        }
        chain
    }

    /// The code without settings.
    pub fn own_code(&self) -> Option<String> {
        let area = self.area.as_ref().filter(|_| self.transparent().is_none())?;
        Some(format!("{area}::{}", snake_case(&self.name.to_string())))
    }

    /// The code that is written as `text`.
    pub fn whole_code(&self, text: &str) -> String {
        match &self.area {
            Some(area) if !text.contains("::") => format!("{area}::{text}"),
            _ => text.to_owned(),
        }
    }
}

/// What a method returns for this case; none if the trait's own method does.
pub fn body(case: &Case, method: &str, otherwise: Option<&TokenStream>) -> Result<Option<TokenStream>> {
    let chain = case.chain(method.trim_start_matches("is_"));
    let last_decides = chain.last().is_some_and(|last| last.condition.is_none());
    let mut body = if last_decides {
        TokenStream::new()
    } else if case.transparent().is_some() {
        let (method, field) = (Ident::new(method, Span::call_site()), &case.bindings[0]);
        quote!(::mcprl_base::error::Diagnostic::#method(#field))
    } else if method == "code" {
        let problem = || format!("`{}` has no code: set `area`, or a whole `code`", case.name);
        let code = case.own_code().ok_or_else(|| Error::new(case.name.span(), problem()))?;
        quote!(#code)
    } else if chain.is_empty() {
        return Ok(None);
    } else {
        otherwise.cloned().unwrap_or_default()
    };
    for setting in chain.into_iter().rev() {
        let value = value(case, method, &setting.value);
        body = match &setting.condition {
            Some(condition) => quote!(if #condition { #value } else { #body }),
            None => value,
        };
    }
    Ok(Some(body))
}

fn value(case: &Case, method: &str, value: &TokenStream) -> TokenStream {
    let text = syn::parse2::<LitStr>(value.clone()).ok();
    match (method, text) {
        ("code", Some(text)) => {
            let code = case.whole_code(&text.value());
            quote!(#code)
        }
        ("hint", Some(text)) => {
            let text = with_fields(&text);
            quote!(::std::option::Option::Some(#text))
        }
        ("hint", None) => quote!(::std::option::Option::<::std::string::String>::from(#value)),
        ("class", _) => match value.to_string().as_str() {
            "usage" => quote!(::mcprl_base::error::Class::Usage),
            "work" => quote!(::mcprl_base::error::Class::Work),
            "interrupted" => quote!(::mcprl_base::error::Class::Interrupted),
            _ => value.clone(),
        },
        ("is_transient", _) if value.is_empty() => quote!(true),
        _ => value.clone(),
    }
}

/// The text with the values of its fields.
fn with_fields(text: &LitStr) -> TokenStream {
    let written = text.value();
    if !written.contains(['{', '}']) {
        return quote!(::std::string::String::from(#text));
    }
    // A field without a name is bound as `_0`.
    let mut named = String::new();
    let mut letters = written.chars().peekable();
    while let Some(letter) = letters.next() {
        named.push(letter);
        match letters.peek() {
            Some('{') if letter == '{' => named.extend(letters.next()),
            Some('0'..='9') if letter == '{' => named.push('_'),
            _ => {}
        }
    }
    let named = LitStr::new(&named, text.span());
    quote!(::std::format!(#named))
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
