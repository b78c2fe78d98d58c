import type { h, VNode } from 'preact';

declare const htm: {
  bind(create: typeof h): (strings: TemplateStringsArray, ...values: unknown[]) => VNode;
};
export default htm;
