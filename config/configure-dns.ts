/** Options of `portwide dns` from its flags. */
import { DNS_SETTINGS, type DnsOptions } from './dns-settings.ts';
import { ConfigurationError } from './errors.ts';
import { type FlagTexts, parseFlags } from './flags.ts';
import { exclusiveFlags } from './notices.ts';
import type { Setting } from './setting.ts';

const SETTINGS: Readonly<Record<keyof DnsOptions, Setting<unknown>>> = DNS_SETTINGS;

const DNS_DEFAULTS = Object.fromEntries(
  Object.entries(SETTINGS).map(([name, { default: value }]) => [name, value]),
) as DnsOptions;

/** @returns the options of `portwide dns`. @throws ConfigurationError with all problems. */
export function configureDns(texts: FlagTexts): DnsOptions {
  const { values, problems } = parseFlags<keyof DnsOptions, DnsOptions>(SETTINGS, texts);
  const options = { ...DNS_DEFAULTS, ...values };
  const all = [...problems, ...exclusiveFlags(texts)];
  if (all.length > 0) throw new ConfigurationError(all);
  return options;
}
