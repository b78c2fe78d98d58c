/** Definition of a setting: flag, field, type, default and help. */
import type { ValueType } from './value-types.ts';

/** Headings of `--help` and docs/operate/configuration.md, in order. */
export const GROUPS = {
  command: 'Actions and configuration file',
  node: 'Node and API server',
  pods: 'Local pod detection',
  rules: 'All modes',
  iptables: 'Mode iptables',
  nftables: 'Mode nftables',
  ipvs: 'Mode ipvs',
  policy: 'Network policy',
  conntrack: 'Connection tracking',
  dns: 'DNS',
  servers: 'HTTP servers',
  process: 'Process and log',
  unused: 'Accepted and ignored',
} as const;
export type Group = keyof typeof GROUPS;

/** A setting. Its name is commander's form of the flag: `ipvsTcpTimeout` is `--ipvs-tcp-timeout`. */
export interface Setting<T> extends SettingDefinition<T> {
  readonly group: Group;
}

interface SettingDefinition<T> {
  readonly type: ValueType<T>;
  readonly default: NoInfer<T>;
  /** What the setting does, or why it is ignored, for `--help` and docs/operate/configuration.md. */
  readonly help: string;
  /** More sentences, for docs/operate/configuration.md only. */
  readonly details?: string;
  /** Path in KubeProxyConfiguration; undefined if there is only a flag. */
  readonly field?: string;
  /** Set if the setting has a field and no flag. */
  readonly fileOnly?: true;
  /** In a file, 0 and false are values, as for a pointer field in Go; only null means the default. */
  readonly keepsZero?: true;
  /** Set if the flag still applies with `--config`. It then overrides the file. */
  readonly overridesFile?: true;
  /** Description of the default, where the value is not helpful. */
  readonly defaultText?: string;
}

/** Settings by name. */
export type Settings = Readonly<Record<string, Setting<unknown>>>;

/** The values of a table of settings. */
export type ValuesOf<S> = {
  readonly [Name in keyof S]: S[Name] extends Setting<infer T> ? T : never;
};

/** Creates a setting; the compiler infers the type of its value. */
export function setting<T>(group: Group, of: SettingDefinition<T>): Setting<T> {
  return { group, ...of };
}

/** The flag of a setting: `iptablesSyncPeriod` is `--iptables-sync-period`. */
export function flagOf(name: string): string {
  if (name.length === 1) return `-${name}`;
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** The default for `--help` and docs/operate/configuration.md; empty if there is none. */
export function formatDefault(of: Setting<unknown>): string {
  if (of.defaultText !== undefined) return of.defaultText;
  const encoded = of.type.toFile(of.default);
  return Array.isArray(encoded) ? encoded.join(',') : String(encoded ?? '');
}
