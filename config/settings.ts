/**
 * The tables of settings. They define flags, `--help`, the fields of the configuration file, defaults,
 * `--write-config-to` and docs/operate/configuration.md. config/ turns flags and files into options.
 *
 * Names, semantics and most defaults follow kube-proxy 1.34 to 1.36. Portwide's own fields are in
 * section `portwide`.
 */
import { AGENT_SETTINGS } from './agent-settings.ts';
import { COMMAND_SETTINGS } from './command-settings.ts';
import { NODE_SETTINGS } from './node-settings.ts';
import { POLICY_SETTINGS } from './policy-settings.ts';
import type { Setting, ValuesOf } from './setting.ts';
import { UNUSED_SETTINGS } from './unused-settings.ts';

/** Options that determine the rules of a node. Marks and addresses are in canonical form. */
export type NodeOptions = ValuesOf<typeof NODE_SETTINGS>;

/** The options of `portwide run`. Periods and timeouts are in milliseconds. */
export type RunOptions = NodeOptions &
  ValuesOf<typeof AGENT_SETTINGS> &
  ValuesOf<typeof POLICY_SETTINGS> &
  ValuesOf<typeof UNUSED_SETTINGS>;

export type OptionName = keyof RunOptions;

/** All settings of `portwide run` except COMMAND_SETTINGS. */
export const RUN_SETTINGS: Readonly<Record<OptionName, Setting<unknown>>> = {
  ...NODE_SETTINGS,
  ...AGENT_SETTINGS,
  ...POLICY_SETTINGS,
  ...UNUSED_SETTINGS,
};

export const OPTION_NAMES = Object.keys(RUN_SETTINGS) as OptionName[];

/** All settings of `portwide run`. */
export const ALL_SETTINGS: Readonly<
  Record<OptionName | keyof typeof COMMAND_SETTINGS, Setting<unknown>>
> = { ...RUN_SETTINGS, ...COMMAND_SETTINGS };

export const DEFAULTS = Object.fromEntries(
  OPTION_NAMES.map((name) => [name, RUN_SETTINGS[name].default]),
) as RunOptions;
