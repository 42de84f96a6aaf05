//! `ACL`.

use crate::core::acl::{DEFAULT, Denied, User};
use crate::core::call::{Call, text};
use crate::core::commands::{self, CATEGORIES};
use crate::core::failure::{Failure, Outcome};
use crate::core::number::integer;
use crate::core::{Bytes, Reply};

pub(super) fn setuser(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let name = text(&arguments[2]);
    if name.contains(|c: char| c.is_ascii_whitespace() || c == '\0') {
        let text = "ERR Usernames can't contain spaces or null characters";
        return Err(Failure::fixed(text));
    }
    let mut user = call.state.users.get(&name).cloned().unwrap_or_default();
    for rule in &arguments[3..] {
        user.apply(rule).map_err(|why| {
            let rule = text(rule);
            Failure::new(format!("ERR Error in ACL SETUSER modifier '{rule}': {why}"))
        })?;
    }
    close_listeners(call, &name, &user);
    call.state.users.put(&name, user);
    Ok(Reply::ok())
}

/// Closes the user's connections that listen to what it may not hear any more.
fn close_listeners(call: &mut Call<'_>, name: &str, user: &User) {
    let sessions = call.state.sessions.iter().filter(|(_, session)| {
        let channels = session.channels.iter().chain(&session.shard_channels);
        let hears_all = channels.clone().all(|channel| user.hears(channel, false))
            && session
                .patterns
                .iter()
                .all(|pattern| user.hears(pattern, true));
        session.user.as_deref() == Some(name) && !hears_all
    });
    let ids: Vec<_> = sessions.map(|(id, _)| *id).collect();
    for id in ids {
        call.state.kill(id, call.caller.session);
    }
}

pub(super) fn deluser(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let names: Vec<_> = arguments[2..].iter().map(|name| text(name)).collect();
    if names.iter().any(|name| name == DEFAULT) {
        return Err(Failure::fixed("ERR The 'default' user cannot be removed"));
    }
    let mut removed = 0;
    for name in names {
        if !call.state.users.remove(&name) {
            continue;
        }
        removed += 1;
        let sessions = call.state.sessions.iter();
        let sessions = sessions.filter(|(_, session)| session.user.as_ref() == Some(&name));
        let ids: Vec<_> = sessions.map(|(id, _)| *id).collect();
        for id in ids {
            call.state.kill(id, call.caller.session);
        }
    }
    Ok(Reply::Integer(removed))
}

pub(super) fn whoami(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let user = call.session().and_then(|session| session.user.clone());
    Ok(Reply::bulk_or_null(user.map(String::into_bytes)))
}

pub(super) fn users(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::bulks(
        call.state.users.iter().map(|(name, _)| name.as_str()),
    ))
}

pub(super) fn list(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    let lines = call.state.users.iter().map(|(name, user)| {
        let mut words = vec![format!(
            "user {name} {}",
            if user.is_on { "on" } else { "off" }
        )];
        if user.takes_any_password() {
            words.push("nopass".to_owned());
        }
        let parts = [
            user.key_patterns(),
            user.channel_patterns(),
            user.commands(),
        ];
        words.extend(parts.into_iter().filter(|part| !part.is_empty()));
        words.join(" ")
    });
    Ok(Reply::bulks(lines))
}

pub(super) fn getuser(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let Some(user) = call.state.users.get(&text(&arguments[2])) else {
        return Ok(Reply::Null);
    };
    let mut flags = vec![if user.is_on { "on" } else { "off" }];
    if user.takes_any_password() {
        flags.push("nopass");
    }
    let fields = [
        (
            "flags",
            Reply::Set(flags.into_iter().map(Reply::bulk).collect()),
        ),
        ("passwords", Reply::Array(Vec::new())),
        ("commands", Reply::bulk(user.commands())),
        ("keys", Reply::bulk(user.key_patterns())),
        ("channels", Reply::bulk(user.channel_patterns())),
        ("selectors", Reply::Array(Vec::new())),
    ];
    let fields = fields.map(|(name, value)| (Reply::bulk(name), value));
    Ok(Reply::Map(fields.into()))
}

pub(super) fn cat(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let Some(category) = arguments.get(2).map(|name| text(name)) else {
        return Ok(Reply::bulks(CATEGORIES.iter().map(|(name, _)| *name)));
    };
    if arguments.len() > 3 {
        return Err(Failure::wrong_subcommand("ACL", "cat"));
    }
    let category = category.to_ascii_lowercase();
    if !CATEGORIES.iter().any(|(known, _)| *known == category) {
        return Err(Failure::new(format!("ERR Unknown category '{category}'")));
    }
    let commands = commands::everything();
    let commands = commands.filter(|command| command.flags.is_in(&category));
    Ok(Reply::bulks(commands.map(|command| command.name)))
}

pub(super) fn genpass(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let bits = arguments.get(2).map_or(Some(256), |text| integer(text));
    let bits = bits.and_then(|bits| usize::try_from(bits).ok());
    let bits = bits.filter(|bits| (1..=4096).contains(bits));
    let wrong = "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";
    let digits = bits.ok_or(Failure::fixed(wrong))?.div_ceil(4);
    let mut password = String::new();
    while password.len() < digits {
        password += &call.state.random.id();
    }
    password.truncate(digits);
    Ok(Reply::bulk(password))
}

/// Denials are not kept.
pub(super) fn log(_call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let is_reset = arguments
        .get(2)
        .is_some_and(|word| crate::core::call::is(word, "RESET"));
    Ok(if is_reset {
        Reply::ok()
    } else {
        Reply::Array(Vec::new())
    })
}

pub(super) fn dryrun(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let name = text(&arguments[2]);
    let unknown = || Failure::new(format!("ERR User '{name}' not found"));
    let user = call.state.users.get(&name).ok_or_else(unknown)?;
    let rest = &arguments[3..];
    let command = commands::find(&rest[0]).ok_or_else(|| {
        let command = text(&rest[0]);
        Failure::new(format!("ERR Command '{command}' not found"))
    })?;
    let said = match user.check(command, rest) {
        Ok(()) => return Ok(Reply::ok()),
        Err(Denied::Command) => {
            let command = command.name;
            format!("This user has no permissions to run the '{command}' command")
        }
        Err(Denied::Key) => {
            "This user has no permissions to access one of the keys used as arguments".to_owned()
        }
        Err(Denied::Channel) => {
            "This user has no permissions to access one of the channels used as arguments"
                .to_owned()
        }
    };
    Ok(Reply::bulk(said))
}
