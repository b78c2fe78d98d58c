/** The flag values that `/flagz` shows. */
import type { FlagTexts } from './flags.ts';
import { flagOf, formatDefault, type Setting } from './setting.ts';
import { ALL_SETTINGS } from './settings.ts';

/**
 * All flags of `portwide run` by name, with the value from the command line or the default. As in kube-proxy,
 * the configuration file is not included; `/configz` shows the effective configuration.
 */
export function flagValues(texts: FlagTexts): Record<string, string> {
  const flags = Object.entries<Setting<unknown>>(ALL_SETTINGS).filter(([, each]) => !each.fileOnly);
  return Object.fromEntries(
    flags.map(([name, each]) => [
      flagOf(name).replace(/^-+/, ''),
      withoutCredentials(texts[name] ?? formatDefault(each)),
    ]),
  );
}

/** Replaces credentials in a URL (`https://user:password@host`) with `CLASSIFIED`, as Kubernetes does. */
function withoutCredentials(value: string): string {
  return value.replace(/:\/\/.*@/s, '://CLASSIFIED@');
}
