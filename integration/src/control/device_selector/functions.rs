//! The functions that Kubernetes adds to CEL, as far as device selectors use them: semantic versions, quantities
//! and `cel.bind`.

use std::any::Any;
use std::cmp::Ordering;

use cel::common::ast::{ComprehensionExpr, Expr, ListExpr, LiteralValue};
use cel::common::types::{CelBool, CelDouble, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::parser::Macro;
use cel::{Env, ExecutionError, add_member_overload, add_overload, extensions};
use semver::Version;

use super::super::quantity::Quantity;

static VERSION: Type = Type::new_unspecified_type("kubernetes.Semver");
static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// A semantic version.
#[derive(Clone, Debug)]
pub struct VersionVal(pub Version);

/// A quantity.
#[derive(Clone, Debug)]
pub struct QuantityVal(pub Quantity);

macro_rules! opaque {
    ($name:ty, $type:expr, $equal:expr) => {
        impl Val for $name {
            fn get_type(&self) -> &Type {
                <Self as Val>::cel_type()
            }

            fn cel_type() -> &'static Type {
                $type
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other.downcast_ref::<$name>().is_some_and(|other| $equal(&self.0, &other.0))
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
            where
                Self: 'v,
            {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn Any> {
                Some(self)
            }
        }

        impl StaticVal for $name {}
    };
}

opaque!(VersionVal, &VERSION, |a: &Version, b: &Version| a.cmp_precedence(b) == Ordering::Equal);
opaque!(QuantityVal, &QUANTITY, |a: &Quantity, b: &Quantity| a == b);

/// The environment in which selectors are compiled and run.
///
/// # Panics
/// If a function is declared twice, which a test would show.
pub fn environment() -> Env {
    let mut env = Env::stdlib();
    declare(&mut env).expect("each function is declared once");
    env
}

fn declare(env: &mut Env) -> Result<(), cel::DeclarationError> {
    env.add_extension(extensions::strings)?;
    env.add_type(VERSION.to_owned())?;
    env.add_type(QUANTITY.to_owned())?;
    env.add_macro(bind())?;

    add_overload!(env, fn version: (CelString<'_>) -> Result<VersionVal>, name = "semver")?;
    add_overload!(env, fn is_version: (CelString<'_>) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn version_cmp: (VersionVal, VersionVal) -> CelInt, name = "compareTo")?;
    add_member_overload!(env, fn version_gt: (VersionVal, VersionVal) -> CelBool, name = "isGreaterThan")?;
    add_member_overload!(env, fn version_lt: (VersionVal, VersionVal) -> CelBool, name = "isLessThan")?;
    add_member_overload!(env, fn major: (VersionVal) -> CelInt)?;
    add_member_overload!(env, fn minor: (VersionVal) -> CelInt)?;
    add_member_overload!(env, fn patch: (VersionVal) -> CelInt)?;

    add_overload!(env, fn quantity: (CelString<'_>) -> Result<QuantityVal>)?;
    add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool)?;
    add_member_overload!(env, fn quantity_cmp: (QuantityVal, QuantityVal) -> CelInt, name = "compareTo")?;
    add_member_overload!(env, fn quantity_gt: (QuantityVal, QuantityVal) -> CelBool, name = "isGreaterThan")?;
    add_member_overload!(env, fn quantity_lt: (QuantityVal, QuantityVal) -> CelBool, name = "isLessThan")?;
    add_member_overload!(env, fn quantity_add: (QuantityVal, QuantityVal) -> QuantityVal, name = "add")?;
    add_member_overload!(env, fn quantity_add_int: (QuantityVal, CelInt) -> QuantityVal, name = "add")?;
    add_member_overload!(env, fn quantity_sub: (QuantityVal, QuantityVal) -> QuantityVal, name = "sub")?;
    add_member_overload!(env, fn quantity_sub_int: (QuantityVal, CelInt) -> QuantityVal, name = "sub")?;
    add_member_overload!(env, fn sign: (QuantityVal) -> CelInt)?;
    add_member_overload!(env, fn is_integer: (QuantityVal) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (QuantityVal) -> Result<CelInt>)?;
    add_member_overload!(env, fn as_approximate_float: (QuantityVal) -> CelDouble)?;
    Ok(())
}

/// `cel.bind(name, value, expression)`: a comprehension over nothing, whose accumulator is the value.
fn bind() -> Macro {
    Macro::receiver("bind", 3, |helper, target, args| {
        let on_cel = matches!(target.as_ref().map(|t| &t.expr), Some(Expr::Ident(name)) if name == "cel");
        let Some(Expr::Ident(name)) = args.first().map(|arg| arg.expr.clone()) else { return Ok(None) };
        if !on_cel {
            return Ok(None);
        }
        let (Some(result), Some(init)) = (args.pop(), args.pop()) else { return Ok(None) };
        let iter_range = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
        let loop_cond = helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into())));
        let loop_step = helper.next_expr(Expr::Ident(name.clone()));
        Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
            iter_range,
            iter_var: "#unused".into(),
            iter_var2: None,
            accu_var: name,
            accu_init: init,
            loop_cond,
            loop_step,
            result,
        })))))
    })
}

fn order(ordering: Ordering) -> CelInt {
    CelInt::from(ordering as i64)
}

fn number(value: u64) -> CelInt {
    CelInt::from(i64::try_from(value).unwrap_or(i64::MAX))
}

fn version(text: &CelString<'_>) -> Result<VersionVal, ExecutionError> {
    Version::parse(text.inner()).map(VersionVal).map_err(|e| ExecutionError::function_error("semver", e))
}

fn is_version(text: &CelString<'_>) -> CelBool {
    Version::parse(text.inner()).is_ok().into()
}

fn version_cmp(a: &VersionVal, b: &VersionVal) -> CelInt {
    order(a.0.cmp_precedence(&b.0))
}

fn version_gt(a: &VersionVal, b: &VersionVal) -> CelBool {
    a.0.cmp_precedence(&b.0).is_gt().into()
}

fn version_lt(a: &VersionVal, b: &VersionVal) -> CelBool {
    a.0.cmp_precedence(&b.0).is_lt().into()
}

fn major(version: &VersionVal) -> CelInt {
    number(version.0.major)
}

fn minor(version: &VersionVal) -> CelInt {
    number(version.0.minor)
}

fn patch(version: &VersionVal) -> CelInt {
    number(version.0.patch)
}

fn quantity(text: &CelString<'_>) -> Result<QuantityVal, ExecutionError> {
    Quantity::parse(text.inner())
        .map(QuantityVal)
        .ok_or_else(|| ExecutionError::function_error("quantity", format!("{:?} is no quantity", text.inner())))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Quantity::parse(text.inner()).is_some().into()
}

fn quantity_cmp(a: &QuantityVal, b: &QuantityVal) -> CelInt {
    order(a.0.cmp(&b.0))
}

fn quantity_gt(a: &QuantityVal, b: &QuantityVal) -> CelBool {
    (a.0 > b.0).into()
}

fn quantity_lt(a: &QuantityVal, b: &QuantityVal) -> CelBool {
    (a.0 < b.0).into()
}

fn quantity_add(a: &QuantityVal, b: &QuantityVal) -> QuantityVal {
    QuantityVal(a.0 + b.0)
}

fn quantity_add_int(a: &QuantityVal, b: &CelInt) -> QuantityVal {
    QuantityVal(a.0 + Quantity::whole(*b.inner()))
}

fn quantity_sub(a: &QuantityVal, b: &QuantityVal) -> QuantityVal {
    QuantityVal(a.0 - b.0)
}

fn quantity_sub_int(a: &QuantityVal, b: &CelInt) -> QuantityVal {
    QuantityVal(a.0 - Quantity::whole(*b.inner()))
}

fn sign(value: &QuantityVal) -> CelInt {
    value.0.sign().into()
}

fn is_integer(value: &QuantityVal) -> CelBool {
    value.0.as_integer().is_some().into()
}

fn as_integer(value: &QuantityVal) -> Result<CelInt, ExecutionError> {
    value
        .0
        .as_integer()
        .map(CelInt::from)
        .ok_or_else(|| ExecutionError::function_error("asInteger", format!("{} is no integer", value.0)))
}

fn as_approximate_float(value: &QuantityVal) -> CelDouble {
    value.0.as_float().into()
}
