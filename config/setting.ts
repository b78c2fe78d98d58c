/** What a setting is. */
import type { ValueType } from './value-types.ts';

/** Headings of `--help` and of the reference page, in their order. */
export const GROUPS = {
  command: 'Actions and configuration file',
  node: 'The node and its cluster',
  pods: 'Detecting local pods',
  rules: 'Rules, all modes',
  iptables: 'Mode iptables',
  nftables: 'Mode nftables',
  ipvs: 'Mode ipvs',
  policy: 'Network policy',
  conntrack: 'Connection tracking',
  dns: 'DNS',
  servers: 'HTTP servers',
  process: 'The process',
  unused: 'Accepted and ignored',
} as const;
export type Group = keyof typeof GROUPS;

/**
 * One thing that can be configured. Its name is its flag's as commander has it: `ipvsTcpTimeout`
 * is `--ipvs-tcp-timeout`.
 */
export interface Setting<T> extends SettingDefinition<T> {
  readonly group: Group;
}

interface SettingDefinition<T> {
  readonly type: ValueType<T>;
  readonly default: NoInfer<T>;
  /** What it does, for `--help` and the reference page. For an ignored setting: why it is ignored. */
  readonly help: string;
  /** Further sentences, for the reference page only. */
  readonly details?: string;
  /** Path in KubeProxyConfiguration; without one, files cannot have it. */
  readonly field?: string;
  /** A field of the file without a flag. */
  readonly fileOnly?: true;
  /** A pointer in Go: in a file, 0 and false are values, and only null means the default. */
  readonly keepsZero?: true;
  /** The flag counts beside --config. */
  readonly overridesFile?: true;
  /** The default in words, where the value would say little. */
  readonly defaultText?: string;
}

/** Any setting; values are `unknown` where it does not matter which setting it is. */
export type Settings = Readonly<Record<string, Setting<unknown>>>;

/** The values of settings. */
export type ValuesOf<S> = {
  readonly [Name in keyof S]: S[Name] extends Setting<infer T> ? T : never;
};

/** Lets the compiler find what the values of a setting are. */
export function setting<T>(group: Group, of: SettingDefinition<T>): Setting<T> {
  return { group, ...of };
}

/** `iptablesSyncPeriod` is `--iptables-sync-period`. */
export function flagOf(name: string): string {
  if (name.length === 1) return `-${name}`;
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** The default as help and the reference page show it; empty for none. */
export function formatDefault(of: Setting<unknown>): string {
  if (of.defaultText !== undefined) return of.defaultText;
  const value = of.type.toFile(of.default);
  return Array.isArray(value) ? value.join(',') : String(value ?? '');
}
