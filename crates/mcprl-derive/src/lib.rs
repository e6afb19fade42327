//! Derives `mcprl_base::error::Diagnostic`: what a person sees of an error beside its message, written at the variant.
//!
//! ```ignore
//! #[derive(Debug, thiserror::Error, Diagnostic)]
//! #[diagnostic(area = "hub", class = usage)]
//! pub enum HubError {
//!     #[error("\"{id}\" is no repository")]
//!     #[hint = "write ORG/NAME in place of `{id}`"]
//!     Name { id: String },
//!     #[error("{url} answered with status {status}")]
//!     #[diagnostic(code = "refused", class = work, transient if *status >= 500)]
//!     #[hint("check the token" if matches!(status, 401 | 403))]
//!     #[hint = "run the command again"]
//!     Status { url: String, status: u16 },
//!     #[error(transparent)]
//!     #[diagnostic(transparent)]
//!     Read(#[from] ReadError),
//! }
//! ```
//!
//! | in `#[diagnostic(…)]` | value | without it |
//! |---|---|---|
//! | `area` | the first part of all codes; only at the type | codes are written whole |
//! | `code` | the second part, or a whole code with `::` | the variant's name in snake case |
//! | `class` | `usage`, `work` or `interrupted` | `work` |
//! | `transient` | nothing | not transient |
//! | `problems` | an expression: the list of JSON objects | none |
//! | `transparent` | nothing: all is as the only field says | |
//!
//! `#[hint = "…"]` is a text with fields in it, as in the message: `{field}`, `{0:?}`. `#[hint(…)]` is such a text or an expression,
//! a `String` or an `Option<String>`.
//!
//! Values may be expressions, too. They and conditions see the fields as references: by name, or as `_0`, `_1`. After a value may
//! stand `if` and a condition, also `if let`: the first value whose condition holds is taken. What stands at the type is for the
//! variants that do not say it themselves.

mod settings;

#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, parse_macro_input};

use settings::{Case, body, cases};

/// See the crate.
#[proc_macro_derive(Diagnostic, attributes(diagnostic, hint))]
pub fn diagnostic(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let cases = cases(input)?;
    let base = quote!(::mcprl_base::error);
    let hint = quote!(::std::option::Option<::std::string::String>);
    let problems = quote!(::std::vec::Vec<::serde_json::Value>);
    let methods = [
        method(&cases, "code", &quote!(&'static str), None)?,
        method(&cases, "hint", &hint, Some(quote!(::std::option::Option::None)))?,
        method(&cases, "problems", &problems, Some(quote!(::std::vec::Vec::new())))?,
        method(&cases, "class", &quote!(#base::Class), Some(quote!(#base::Class::Work)))?,
        method(&cases, "is_transient", &quote!(bool), Some(quote!(false)))?,
    ];
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics #base::Diagnostic for #name #arguments #bounds {
            #(#methods)*
        }
    })
}

/// None if the method of the trait does.
fn method(
    cases: &[Case],
    name: &str,
    returns: &TokenStream,
    otherwise: Option<TokenStream>,
) -> syn::Result<Option<TokenStream>> {
    let bodies = cases.iter().map(|case| body(case, name, otherwise.as_ref()));
    let bodies: Vec<Option<TokenStream>> = bodies.collect::<syn::Result<_>>()?;
    if bodies.iter().all(Option::is_none) {
        return Ok(None);
    }
    let arms = cases.iter().zip(&bodies).filter_map(|(case, body)| {
        let pattern = &case.pattern;
        body.as_ref().map(|body| quote!(#pattern => #body,))
    });
    let rest = otherwise.filter(|_| bodies.iter().any(Option::is_none)).map(|value| quote!(_ => #value,));
    let name = syn::Ident::new(name, proc_macro2::Span::call_site());
    Ok(Some(quote! {
        #[allow(unused_variables)]
        fn #name(&self) -> #returns {
            match self {
                #(#arms)*
                #rest
            }
        }
    }))
}
