// What the page's address asks for beside a conversation.

const SECTIONS = ["personas", "documents"] as const;

/** The section of the settings that a link of the dashboard leads to; asked for once. */
export function wishedSection(): (typeof SECTIONS)[number] | undefined {
  const wished = SECTIONS.find((one) => location.hash === `#${one}`);
  if (wished) history.replaceState(null, "", location.pathname);
  return wished;
}
