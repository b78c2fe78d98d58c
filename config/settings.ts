/**
 * Everything that can be configured, once. config/ makes options of flags and files: from these tables come the flags and `--help`, what a
 * file may have, the defaults, `--write-config-to` and docs/configuration.md.
 *
 * Names, defaults and meaning of flags and fields are those of kube-proxy 1.34 to 1.36; what is
 * ours is below `portwide` in a file.
 */
import { AGENT_SETTINGS } from './agent-settings.ts';
import { COMMAND_SETTINGS } from './command-settings.ts';
import { NODE_SETTINGS } from './node-settings.ts';
import { POLICY_SETTINGS } from './policy-settings.ts';
import type { Setting, ValuesOf } from './setting.ts';
import { UNUSED_SETTINGS } from './unused-settings.ts';

/** What decides which rules a node gets. Marks and addresses are in canonical form. */
export type NodeOptions = ValuesOf<typeof NODE_SETTINGS>;

/** All that `portwide run` may be told, with defaults. Periods and timeouts are in milliseconds. */
export type RunOptions = NodeOptions &
  ValuesOf<typeof AGENT_SETTINGS> &
  ValuesOf<typeof POLICY_SETTINGS> &
  ValuesOf<typeof UNUSED_SETTINGS>;

export type OptionName = keyof RunOptions;

/** Settings that have a value while the agent runs. */
export const RUN_SETTINGS: Readonly<Record<OptionName, Setting<unknown>>> = {
  ...NODE_SETTINGS,
  ...AGENT_SETTINGS,
  ...POLICY_SETTINGS,
  ...UNUSED_SETTINGS,
};

export const OPTION_NAMES = Object.keys(RUN_SETTINGS) as OptionName[];

/** All settings, those that only say what to do included. */
export const ALL_SETTINGS: Readonly<
  Record<OptionName | keyof typeof COMMAND_SETTINGS, Setting<unknown>>
> = { ...RUN_SETTINGS, ...COMMAND_SETTINGS };

export const DEFAULTS = Object.fromEntries(
  OPTION_NAMES.map((name) => [name, RUN_SETTINGS[name].default]),
) as RunOptions;
