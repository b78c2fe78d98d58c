/** The page `/flagz`. */
import type { FlagTexts } from './flags.ts';
import { flagOf, formatDefault, type Setting } from './setting.ts';
import { ALL_SETTINGS } from './settings.ts';

/**
 * Values of all flags of `portwide run` by name, for `/flagz`: as given on the command line, or the default.
 * As in kube-proxy, the configuration file does not count; `/configz` shows the result of both.
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

/** Hides credentials in a URL (`https://user:password@host`) behind Kubernetes' word for hidden values. */
function withoutCredentials(value: string): string {
  return value.replace(/:\/\/.*@/s, '://CLASSIFIED@');
}
